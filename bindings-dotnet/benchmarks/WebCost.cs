using System.Diagnostics;
using System.Net;
using System.Net.Sockets;
using System.Text;
using System.Text.Json;

namespace Pyroscope.Benchmarks;

/// <summary>
/// What wall time costs a <see cref="WebService"/>: CPU time a request, with it over without, both profiled at 100 Hz, in slices of one
/// process in the order off, on, on, off. This process has eight clients and the backend, which answers after half a millisecond. Each
/// of the two processes keeps to one processor.
/// </summary>
internal static class WebCost
{
    private const int Clients = 8;
    private const int BackendMicroseconds = 500;

    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        // Such as "0-1" or "0,2-3".
        var processors = File.ReadLines("/proc/self/status").First(line => line.StartsWith("Cpus_allowed_list:", StringComparison.Ordinal)).Split(':', ',', '-');
        using var listener = new TcpListener(IPAddress.Loopback, 0);
        listener.Start();
        new Thread(() => Accept(listener)) { IsBackground = true }.Start();
        string[] program = [Environment.ProcessPath!, typeof(WebCost).Assembly.Location, "web", $"http://{listener.LocalEndpoint}/lines"];
        using var service = TaskSet([processors[^1].Trim(), .. program]);
        using (var here = TaskSet("-a", "-p", processors[1].Trim(), $"{Environment.ProcessId}"))
        {
            here.WaitForExit();
        }

        using var client = new HttpClient { BaseAddress = new Uri(Said(service)) };
        var (requests, warmUp) = (options.Of(2500, 80), options.Of(1500, 80));
        WebService.Took Slice(bool wallTime)
        {
            Tell(service, wallTime ? "on" : "off");
            // Threads get their timers, and methods that were there before their names, before the clock is read: a service starts once.
            Ask(client, warmUp);
            Tell(service, "measure");
            Ask(client, requests);
            return JsonSerializer.Deserialize<WebService.Took>(Tell(service, "end"))!;
        }

        // What is compiled anew while it runs is so by then.
        for (var time = 0; time < options.Of(10, 2); time++)
        {
            Slice(time % 2 != 0);
        }

        static bool HasWallTime(int slice) => slice % 4 is 1 or 2;
        var slices = Enumerable.Range(0, options.Of(60, 12)).Select(slice =>
        {
            var took = Slice(HasWallTime(slice));
            Row.Say($"slice {slice + 1}, wall time {(HasWallTime(slice) ? "on" : "off")}: {took.Cpu / requests * 1e6:0.0} µs of CPU a request, {requests / took.Wall:0} a second, own threads {took.Own * 1e3:0.0} ms");
            return took;
        }).ToArray();
        service.StandardInput.Close();
        service.WaitForExit();
        // Neighbours by twos, forwards and backwards in turn: from the first slice on with over without, from the second on two that are alike.
        double More(int slice, int other) => (slices[slice].Cpu / slices[other].Cpu) - 1;
        Interval Pairs(int first) => new(Enumerable.Range(0, (slices.Length - first) / 2).Select(pair => first + (2 * pair)).Select((slice, pair) =>
            pair % 2 == 0 ? More(slice + 1, slice) : More(slice, slice + 1)));
        var (over, control) = (Pairs(0), Pairs(1));
        double Sum(bool wallTime, Func<WebService.Took, double> of) => slices.Where((_, slice) => HasWallTime(slice) == wallTime).Sum(of);
        double OfCpu(bool wallTime) => Sum(wallTime, took => took.Own) / Sum(wallTime, took => took.Cpu);
        var samples = (Sum(true, took => took.Samples) - Sum(false, took => took.Samples)) / Sum(true, took => took.Wall);
        var microseconds = Sum(false, took => took.Cpu) / (slices.Length / 2) / requests * 1e6;
        yield return new("CPU a request on Kestrel, wall time alike (control)", "", control.Percent, null);
        // The control's own uncertainty counts too.
        var most = over.Mean - control.Mean + Math.Sqrt((over.Half * over.Half) + (control.Half * control.Half));
        yield return new("CPU a request on Kestrel, wall time on over off", "<= +1 % over control", FormattableString.Invariant($"{over.Percent} of {microseconds:0} µs"), most <= 0.01);
        yield return new("own threads' part of it, samples", "", FormattableString.Invariant($"{(OfCpu(true) - OfCpu(false)) * 100:+0.00;-0.00} %, {samples:0} samples/s more"), null);
    }

    private static void Ask(HttpClient client, int requests) => Task.WaitAll(Enumerable.Range(0, Clients).Select(_ => Task.Run(async () =>
    {
        for (var request = 0; request < requests / Clients; request++)
        {
            await client.GetByteArrayAsync("order");
        }
    })).ToArray());

    /// <summary>The backend: a thread for each connection.</summary>
    private static void Accept(TcpListener listener)
    {
        var lines = JsonSerializer.SerializeToUtf8Bytes(Enumerable.Range(0, 600).Select(n => new WebService.Line($"item{n}", 100 + (n * 7 % 31), n % 5)));
        byte[] answer = [.. Encoding.ASCII.GetBytes($"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {lines.Length}\r\n\r\n"), .. lines];
        try
        {
            while (true)
            {
                var connection = listener.AcceptSocket();
                new Thread(() => Serve(connection, answer)) { IsBackground = true }.Start();
            }
        }
        catch (SocketException)
        {
            // It was disposed of.
        }
    }

    private static void Serve(Socket connection, byte[] answer)
    {
        using var ends = connection;
        connection.NoDelay = true;
        var request = new byte[4096];
        for (int length; (length = connection.Receive(request)) > 0;)
        {
            if (request.AsSpan(0, length).EndsWith("\r\n\r\n"u8))
            {
                ShortSleep.For(BackendMicroseconds);
                connection.Send(answer);
            }
        }
    }

    /// <summary>A program that may be told lines and says lines.</summary>
    private static Process TaskSet(params string[] arguments) =>
        Process.Start(new ProcessStartInfo("taskset", ["-c", .. arguments]) { RedirectStandardInput = true, RedirectStandardOutput = true })!;

    private static string Tell(Process service, string line)
    {
        service.StandardInput.WriteLine(line);
        return Said(service);
    }

    private static string Said(Process service) =>
        service.StandardOutput.ReadLine() ?? throw new InvalidOperationException("the service has ended");
}
