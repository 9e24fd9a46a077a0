using System.Diagnostics;
using System.Text;
using System.Text.Json;

namespace Pyroscope.Tests;

/// <summary>A sample: frames leaf first, values in the order of the profile's sample types, labels of text.</summary>
internal sealed record PprofSample(IReadOnlyList<string> Frames, IReadOnlyList<long> Values, IReadOnlyDictionary<string, string> Labels)
{
    internal string? Label(string name) => Labels.GetValueOrDefault(name);
}

/// <summary>A profile as tests see it; <c>fault-server --read</c> decodes it, for tests of all languages.</summary>
internal sealed record Pprof(IReadOnlyList<PprofSample> Samples, long Period)
{
    /// <summary>All profiles of a kind that <c>file:///folder</c> left, such as process_cpu.</summary>
    internal static IEnumerable<Pprof> ReadFolder(string folder, string kind)
    {
        var files = Directory.GetFiles(folder, $"*-{kind}-*.pb.gz").Order(StringComparer.Ordinal);
        using var server = StartServer(["--read", .. files]);
        var profiles = new List<Pprof>();
        while (server.StandardOutput.ReadLine() is { } line)
        {
            using var read = JsonDocument.Parse(line);
            profiles.Add(Read(read.RootElement));
        }

        server.WaitForExit();
        return server.ExitCode == 0 ? profiles : throw new InvalidDataException($"a profile in {folder} cannot be read");
    }

    /// <summary>As the server says it.</summary>
    internal static Pprof Read(JsonElement read)
    {
        var frames = read.GetProperty("frames").EnumerateArray().Select(frame => frame[0].GetString()!).ToArray();
        var samples = read.GetProperty("samples").EnumerateArray().Select(sample => new PprofSample(
            sample.GetProperty("stack").EnumerateArray().Select(place => frames[place.GetInt32()]).ToArray(),
            sample.GetProperty("values").EnumerateArray().Select(value => value.GetInt64()).ToArray(),
            sample.GetProperty("labels").EnumerateObject().ToDictionary(label => label.Name, label => label.Value.GetString()!)));
        return new Pprof(samples.ToArray(), read.GetProperty("period").GetInt64());
    }

    /// <summary>The program fault-server, from where this one was built to unless FAULT_SERVER says where it is.</summary>
    internal static Process StartServer(params string[] arguments)
    {
        var path = Environment.GetEnvironmentVariable("FAULT_SERVER") ?? Path.Combine(AppContext.BaseDirectory, "../../../../debug/fault-server");
        return Process.Start(new ProcessStartInfo(path, arguments)
        {
            RedirectStandardInput = true,
            RedirectStandardOutput = true,
            StandardOutputEncoding = Encoding.UTF8,
        })!;
    }
}
