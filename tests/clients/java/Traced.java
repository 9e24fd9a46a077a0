import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.context.Scope;
import java.util.ArrayList;
import java.util.List;

/** A service under OpenTelemetry's agent with Grafana's extension: `Traced SECONDS`. Each span does one kind of work. */
public final class Traced {
    static final List<Object> KEPT = new ArrayList<>();

    interface Task {
        void run() throws InterruptedException;
    }

    private Traced() {}

    static void in(Tracer tracer, String name, Task task) throws InterruptedException {
        Span span = tracer.spanBuilder(name).startSpan();
        try (Scope scope = span.makeCurrent()) {
            task.run();
        } finally {
            span.end();
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        Tracer tracer = GlobalOpenTelemetry.getTracer("shop");
        long end = System.nanoTime() + Long.parseLong(arguments[0]) * 1_000_000_000;
        while (System.nanoTime() < end) {
            in(tracer, "GET /price", () -> Work.price(120));
            in(tracer, "GET /tax", () -> Work.tax(80));
            in(tracer, "POST /order", () -> {
                KEPT.add(Work.pack(8));
                Work.order();
                Work.deliver();
            });
            Work.price(40);
        }
    }
}
