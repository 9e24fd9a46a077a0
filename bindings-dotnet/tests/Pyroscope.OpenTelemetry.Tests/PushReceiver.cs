using System.Collections.Concurrent;
using System.IO.Compression;
using System.Text;
using Microsoft.AspNetCore.Builder;
using Microsoft.AspNetCore.Hosting;
using Microsoft.AspNetCore.Http;
using Microsoft.Extensions.Logging;

namespace Pyroscope.Tests;

/// <summary>A profile as a server gets it, by names of headers in small letters.</summary>
internal sealed record Push(string Path, IReadOnlyDictionary<string, string> Headers, IReadOnlyDictionary<string, string> Labels, Pprof Profile);

/// <summary>A server that takes every profile.</summary>
internal sealed class PushReceiver : IAsyncDisposable
{
    private readonly WebApplication app;

    private PushReceiver(WebApplication app) => this.app = app;

    internal ConcurrentQueue<Push> Pushes { get; } = new();

    /// <summary>host:port.</summary>
    internal string Place => app.Urls.First()["http://".Length..];

    internal static async Task<PushReceiver> Start()
    {
        var builder = WebApplication.CreateBuilder();
        builder.Logging.ClearProviders();
        builder.WebHost.UseUrls("http://127.0.0.1:0");
        var receiver = new PushReceiver(builder.Build());
        receiver.app.Run(receiver.Take);
        await receiver.app.StartAsync();
        return receiver;
    }

    public ValueTask DisposeAsync() => app.DisposeAsync();

    private async Task Take(HttpContext context)
    {
        // Else it asks for the server's version.
        if (context.Request.Method != "POST")
        {
            context.Response.StatusCode = 404;
            return;
        }

        using var body = new MemoryStream();
        await using (var unzipped = new GZipStream(context.Request.Body, CompressionMode.Decompress))
        {
            await unzipped.CopyToAsync(body);
        }

        // push.v1: PushRequest.series, RawProfileSeries.labels and .samples, RawSample.raw_profile.
        var series = new Pprof.Fields(body.ToArray()).Messages(1).Single();
        var labels = series.Messages(1).ToDictionary(label => Text(label, 1), label => Text(label, 2));
        var profile = series.Messages(2).Single().Many(1).Single().ToArray();
        if (profile is [0x1f, 0x8b, ..])
        {
            using var plain = new MemoryStream();
            using var unzipped = new GZipStream(new MemoryStream(profile), CompressionMode.Decompress);
            unzipped.CopyTo(plain);
            profile = plain.ToArray();
        }

        var headers = context.Request.Headers.ToDictionary(header => header.Key.ToLowerInvariant(), header => header.Value.ToString());
        Pushes.Enqueue(new Push(context.Request.Path, headers, labels, Pprof.Read(profile)));
    }

    private static string Text(Pprof.Fields message, int field) => Encoding.UTF8.GetString(message.Many(field).Single().Span);
}
