import java.util.ArrayList;
import java.util.List;

/** The same work without any library: `Plain SECONDS`, for async-profiler by itself and for Java's own recorder. */
public final class Plain {
    static final List<Object> KEPT = new ArrayList<>();

    private Plain() {}

    public static void main(String[] arguments) throws InterruptedException {
        long end = System.nanoTime() + Long.parseLong(arguments[0]) * 1_000_000_000;
        while (System.nanoTime() < end) {
            Work.price(100);
            Work.tax(50);
            KEPT.add(Work.pack(4));
            Work.order();
            Work.deliver();
        }
    }
}
