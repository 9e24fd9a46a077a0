using System.Diagnostics;
using System.Globalization;
using System.Net.Http.Json;
using System.Text;
using System.Text.Json;
using Microsoft.AspNetCore.Builder;
using Microsoft.AspNetCore.Hosting;
using Microsoft.Extensions.Logging;
using Pyroscope.OpenTelemetry;
using Pyroscope.Tests;

namespace Pyroscope.Benchmarks;

/// <summary>
/// A service on Kestrel, in a process of its own: ASP.NET Core's span is the root, with three children. In each child it asks a backend
/// over a kept connection, works with the answer, takes a lock and reads a file. A bit more than a millisecond of CPU time, two dozen
/// calls that may wait, and awaits over them.
/// </summary>
internal sealed class WebService(string backend)
{
    private static readonly string[] Children = ["lines", "prices", "page"];

    private readonly HttpClient client = new();
    private readonly Microsoft.Win32.SafeHandles.SafeFileHandle file = File.OpenHandle("/proc/self/exe");
    private readonly object gate = new();
    private long sold;

    /// <summary>
    /// Says its address. Then slices, each told in lines: "on" or "off" begins one, the next line its measured part, and the one
    /// after that ends it, which is answered with what it <see cref="Took"/>. Ends with its standard input.
    /// </summary>
    internal static void Run(string backend)
    {
        var builder = WebApplication.CreateSlimBuilder();
        builder.Logging.ClearProviders();
        builder.WebHost.UseUrls("http://127.0.0.1:0");
        var app = builder.Build();
        app.MapGet("/order", new WebService(backend).Order);
        app.StartAsync().Wait();
        Console.WriteLine(app.Urls.First());
        while (Console.ReadLine() is { } wallTime)
        {
            using var recording = new Recording(settings => settings.WallTimeProfilingEnabled = wallTime == "on", scope: SpanScope.Root);
            Console.WriteLine();
            Console.ReadLine();
            // Each slice begins with the same heap.
            GC.Collect();
            GC.WaitForPendingFinalizers();
            var before = Took.SoFar;
            Console.WriteLine();
            Console.ReadLine();
            // What it costs to pass on the samples is part of it.
            Profiler.Instance.Flush(TimeSpan.FromSeconds(30));
            Console.WriteLine(JsonSerializer.Serialize(Took.SoFar.Less(before)));
        }
    }

    private async Task<string> Order()
    {
        var page = new StringBuilder();
        var read = new byte[4096];
        foreach (var child in Children)
        {
            using var span = Recording.Source.StartActivity(child);
            var lines = (await client.GetFromJsonAsync<Line[]>(backend))!;
            await RandomAccess.ReadAsync(file, read, 0);
            foreach (var line in lines.OrderBy(line => line.Price).ThenBy(line => line.Sku, StringComparer.Ordinal))
            {
                page.Append(CultureInfo.InvariantCulture, $"<tr><td>{line.Sku,10}</td><td>{line.Price / 100m:0.00}</td></tr>\n");
            }

            lock (gate)
            {
                sold += lines.Sum(line => line.Count);
            }
        }

        return page.Append(sold).ToString();
    }

    /// <summary>What the backend answers with many of.</summary>
    internal sealed record Line(string Sku, int Price, int Count);

    /// <summary>What a slice took: seconds of CPU time, of the profiler's own threads' among it, and by the clock; samples.</summary>
    internal sealed record Took(double Cpu, double Own, double Wall, double Samples)
    {
        internal static Took SoFar => new(
            ThreadTime.OfAllThreads, Profiler.Instance.Stats.Numbers["own_cpu_ns"] / 1e9, Stopwatch.GetTimestamp() / (double)Stopwatch.Frequency, Profiler.Instance.Stats.Taken.Samples);

        internal Took Less(Took before) => new(Cpu - before.Cpu, Own - before.Own, Wall - before.Wall, Samples - before.Samples);
    }
}
