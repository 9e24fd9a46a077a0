using System.Diagnostics;
using System.Text.Json;

namespace Pyroscope.Tests;

/// <summary>A profile as a server gets it, by names of headers in small letters.</summary>
internal sealed record Push(string Path, IReadOnlyDictionary<string, string> Headers, IReadOnlyDictionary<string, string> Labels, Pprof Profile);

/// <summary>A server that takes every profile: <c>fault-server --receive</c>, in a process of its own.</summary>
internal sealed class PushReceiver : IDisposable
{
    private readonly Process server = Pprof.StartServer("--receive");

    internal PushReceiver()
    {
        using var listens = JsonDocument.Parse(server.StandardOutput.ReadLine()!);
        Place = $"127.0.0.1:{listens.RootElement.GetProperty("port").GetInt32()}";
    }

    /// <summary>host:port.</summary>
    internal string Place { get; }

    /// <summary>What came since this was asked for the last time.</summary>
    internal Push[] Pushes()
    {
        server.StandardInput.WriteLine("0");
        server.StandardInput.Flush();
        using var pushes = JsonDocument.Parse(server.StandardOutput.ReadLine()!);
        return pushes.RootElement.EnumerateArray().Select(push => new Push(
            push.GetProperty("path").GetString()!,
            push.GetProperty("headers").EnumerateArray().ToDictionary(header => header[0].GetString()!, header => header[1].GetString()!),
            push.GetProperty("labels").EnumerateObject().ToDictionary(label => label.Name, label => label.Value.GetString()!),
            Pprof.Read(push.GetProperty("profile")))).ToArray();
    }

    public void Dispose()
    {
        server.StandardInput.Close();
        server.WaitForExit();
        server.Dispose();
    }
}
