using System.Diagnostics;
using System.Runtime.CompilerServices;

namespace Waits;

/// <summary>The spans that everything else runs in, and how long.</summary>
static class Spans
{
    public static readonly ActivitySource Source = new("waits");
    static DateTime until;

    public static bool Over => DateTime.UtcNow >= until;

    public static void Last(double seconds) => until = DateTime.UtcNow.AddSeconds(seconds);

    /// <summary>Does it in a span of this name. Methods add to what they get: a call at the end of one would take its place on the stack.</summary>
    [MethodImpl(MethodImplOptions.NoInlining)]
    public static int One(string name, Func<int, int> work, int argument)
    {
        using var span = Source.StartActivity(name);
        return work(argument) + 1;
    }

    /// <summary>The same of what awaits.</summary>
    [MethodImpl(MethodImplOptions.NoInlining)]
    public static async Task<int> OneAwait(string name, Func<Task<int>> work)
    {
        using var span = Source.StartActivity(name);
        return await work() + 1;
    }
}
