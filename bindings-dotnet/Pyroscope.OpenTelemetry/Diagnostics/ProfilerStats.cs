namespace Pyroscope;

/// <summary>
/// What became of every sample since the profiler was started. At any time
/// <c>Taken = DroppedRing + DroppedWindow + Pending + Encoded</c> and
/// <c>Encoded = Queued + Uploaded + Refused + DroppedQueue + DroppedOld + Discarded</c>, in number and in weight, and of waits
/// <c>WaitsTaken = WaitsSampled + WaitsOutside + WaitsPending + WaitsDroppedRing + WaitsDroppedBusy + WaitsDroppedThread</c>.
/// </summary>
public sealed class ProfilerStats
{
    internal ProfilerStats(IReadOnlyDictionary<string, ulong> numbers, string lastError)
    {
        Numbers = numbers;
        LastError = lastError;
    }

    /// <summary>Samples that were taken.</summary>
    public Tally Taken => Tally("taken");

    /// <summary>Lost as a thread's ring was full.</summary>
    public Tally DroppedRing => Tally("dropped_ring");

    /// <summary>Lost as there were too many different stacks, spans and labels.</summary>
    public Tally DroppedWindow => Tally("dropped_window");

    /// <summary>Taken, and not in a profile yet.</summary>
    public Tally Pending => Tally("pending");

    /// <summary>In profiles.</summary>
    public Tally Encoded => Tally("encoded");

    /// <summary>In profiles that wait for their upload.</summary>
    public Tally Queued => Tally("queued");

    /// <summary>In profiles that the server took, or in files.</summary>
    public Tally Uploaded => Tally("uploaded");

    /// <summary>In profiles that the server refused for good.</summary>
    public Tally Refused => Tally("refused");

    /// <summary>Lost as the queue was full, or uploading ended.</summary>
    public Tally DroppedQueue => Tally("dropped_queue");

    /// <summary>Lost as they could not be sent for an hour.</summary>
    public Tally DroppedOld => Tally("dropped_old");

    /// <summary>Of <see cref="DroppedQueue"/> and <see cref="DroppedOld"/>: sent and not answered, so the server may have it all the same.</summary>
    public Tally DroppedUnanswered => Tally("dropped_unanswered");

    /// <summary>Encoded and thrown away: <c>ServerAddress = "none"</c>.</summary>
    public Tally Discarded => Tally("discarded");

    /// <summary>Waits of threads, and times in which async methods were suspended, that were to be samples; of those in spans <see cref="Taken"/> counts too.</summary>
    public Tally WaitsTaken => Tally("waits_taken");

    /// <summary>Of these: they are samples.</summary>
    public Tally WaitsSampled => Tally("waits_sampled");

    /// <summary>They were outside of spans, and are no samples.</summary>
    public Tally WaitsOutside => Tally("waits_outside");

    /// <summary>They become samples when their threads have a stack that can be read.</summary>
    public Tally WaitsPending => Tally("waits_pending");

    /// <summary>Lost as their thread's ring was full, or it had none.</summary>
    public Tally WaitsDroppedRing => Tally("waits_dropped_ring");

    /// <summary>Lost as their thread was at another sample, or had one to take when its stack can be read.</summary>
    public Tally WaitsDroppedBusy => Tally("waits_dropped_busy");

    /// <summary>Lost as their thread was not known yet, or no longer.</summary>
    public Tally WaitsDroppedThread => Tally("waits_dropped_thread");

    /// <summary>All numbers by name, those above too, such as <c>taken_samples</c>, <c>threads</c>, <c>own_cpu_ns</c>.</summary>
    public IReadOnlyDictionary<string, ulong> Numbers { get; }

    /// <summary>The newest error of any stage, empty if there was none.</summary>
    public string LastError { get; }

    /// <summary>The numbers that are not 0, and the newest error.</summary>
    /// <returns>One line of text.</returns>
    public override string ToString()
    {
        var counted = string.Join(", ", Numbers.Where(pair => pair.Value != 0).Select(pair => $"{pair.Key} {pair.Value}"));
        return LastError.Length == 0 ? counted : $"{counted}; {LastError}";
    }

    private Tally Tally(string name) => new(Number($"{name}_samples"), Number($"{name}_weight"));

    private ulong Number(string name) => Numbers.GetValueOrDefault(name);
}

/// <summary>A number of samples and the sum of their values.</summary>
/// <param name="Samples">How many.</param>
/// <param name="Weight">Sum of their values: nanoseconds of CPU or waiting, bytes, exceptions.</param>
public readonly record struct Tally(ulong Samples, ulong Weight);
