import io.pyroscope.javaagent.ProfilerSdk;
import io.pyroscope.javaagent.PyroscopeAgent;
import io.pyroscope.javaagent.config.Config;
import io.pyroscope.labels.v2.LabelsSet;
import io.pyroscope.labels.v2.Pyroscope;

/** A service with Grafana's profiler alone: `Labelled SECONDS`. It sets labels, and spans and traces as the newer extension does. */
public final class Labelled {
    private Labelled() {}

    public static void main(String[] arguments) throws Exception {
        PyroscopeAgent.start(Config.build());
        ProfilerSdk profiler = new ProfilerSdk();
        long name = profiler.registerConstant("GET /price");
        long end = System.nanoTime() + Long.parseLong(arguments[0]) * 1_000_000_000;
        for (long span = 1; System.nanoTime() < end; span++) {
            profiler.setTracingContext(0xf0f0_0000_0000_0000L + span % 3, name);
            profiler.setTraceId("4bf92f3577b34da6a3ce929d0e0e4736");
            Work.price(100);
            profiler.setTracingContext(0, 0);
            profiler.clearTraceId();
            Pyroscope.LabelsWrapper.run(new LabelsSet("region", "eu"), () -> Work.tax(60));
            Traced.KEPT.add(Work.pack(4));
            Work.order();
            Work.deliver();
        }
    }
}
