using System.Diagnostics;
using Pyroscope;
using Pyroscope.Tests;

/// A span that begins on another thread while the first span starts the profiler: the start reads these labels, and goes on
/// once the span has begun.
internal sealed class SpanMeanwhile
{
    private readonly ActivitySource source;
    private readonly ManualResetEventSlim begun = new(), isOver = new();
    private readonly Thread thread;

    internal SpanMeanwhile(ActivitySource source)
    {
        this.source = source;
        thread = new Thread(Run);
        Labels = new LabelsThatAreSlow(() =>
        {
            // Without the first span's context: it is no child of that.
            thread.UnsafeStart();
            begun.Wait();
        });
    }

    internal IDictionary<string, string> Labels { get; }

    /// The tag when the span had begun and when it had ended.
    internal string TagAtFirst { get; private set; } = "";

    internal string Tag { get; private set; } = "";

    /// To be called when the first span has begun.
    internal void End()
    {
        isOver.Set();
        thread.Join();
    }

    private void Run()
    {
        using var span = source.StartActivity("meanwhile")!;
        TagAtFirst = TagOf(span);
        begun.Set();
        isOver.Wait();
        // Until there are more samples than other threads can have meanwhile, at a hundred a second of their CPU time.
        static double OfOthers() => ThreadTime.OfAllThreads - ThreadTime.Seconds;
        var (taken, others) = (Profiler.Instance.Stats.Taken.Samples, OfOthers());
        while (Profiler.Instance.Status.IsRunning && Profiler.Instance.Stats.Taken.Samples - taken < 5 + (100 * (OfOthers() - others)))
        {
            ThreadTime.Burn(10);
        }

        span.Stop();
        Tag = TagOf(span);
    }

    private static string TagOf(Activity span) => span.GetTagItem("pyroscope.profile.id") as string ?? "";

    private sealed class LabelsThatAreSlow(Action onFirstLook) : Dictionary<string, string>, IEnumerable<KeyValuePair<string, string>>
    {
        private int looks;

        IEnumerator<KeyValuePair<string, string>> IEnumerable<KeyValuePair<string, string>>.GetEnumerator()
        {
            if (Interlocked.Increment(ref looks) == 1)
            {
                onFirstLook();
            }

            return GetEnumerator();
        }
    }
}
