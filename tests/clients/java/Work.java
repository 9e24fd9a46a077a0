import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;

/** What the programs of this folder do: each method is known by what it costs. */
final class Work {
    private static final Object LOCK = new Object();
    private static final int PIECE = 16 * 1024;
    static volatile long sum;

    private Work() {}

    /** Takes CPU time. */
    static void price(long milliseconds) {
        long end = System.nanoTime() + milliseconds * 1_000_000;
        while (System.nanoTime() < end) {
            for (int i = 0; i < 10_000; i++) {
                sum += i * 31L ^ sum;
            }
        }
    }

    /** The same, through a lambda, whose class has a name that the runtime makes up. */
    static void tax(long milliseconds) {
        Runnable count = () -> {
            for (int i = 0; i < 10_000; i++) {
                sum += i * 17L ^ sum;
            }
        };
        long end = System.nanoTime() + milliseconds * 1_000_000;
        while (System.nanoTime() < end) {
            count.run();
        }
    }

    /** Takes memory, of which a part is kept. */
    static List<byte[]> pack(int megabytes) {
        List<byte[]> kept = new ArrayList<>();
        for (int i = 0; i < megabytes * 64; i++) {
            byte[] piece = new byte[PIECE];
            if (i % 64 == 0) {
                kept.add(piece);
            }
        }
        kept.add(new byte[1024 * 1024]);
        return kept;
    }

    /** Waits for a lock that another thread holds. */
    static void order() throws InterruptedException {
        Thread other = new Thread(() -> {
            synchronized (LOCK) {
                Work.price(5);
            }
        });
        synchronized (LOCK) {
            other.start();
            price(20);
        }
        other.join();
    }

    /** Waits for nobody. */
    static void deliver() {
        LockSupport.parkNanos(new Object(), 30_000_000);
    }
}
