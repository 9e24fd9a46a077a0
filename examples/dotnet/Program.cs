// A service of orders on Kestrel: its spans compute, allocate, wait for a lock, throw and call each other over HTTP. ASP.NET Core and
// HttpClient raise spans by themselves; with OpenTelemetry.Extensions.Hosting the lines below stand in AddOpenTelemetry().
using System.Diagnostics;
using OpenTelemetry;
using OpenTelemetry.Exporter;
using OpenTelemetry.Resources;
using OpenTelemetry.Trace;
using Orders;
using Pyroscope.OpenTelemetry;

var builder = WebApplication.CreateBuilder(args);
builder.Logging.SetMinimumLevel(LogLevel.Warning).AddFilter("Microsoft.Hosting.Lifetime", LogLevel.Information);
var app = builder.Build();

using var tracing = Sdk.CreateTracerProviderBuilder()
    .ConfigureResource(resource => resource.AddService("orders"))
    .AddSource(Work.Source.Name, "Microsoft.AspNetCore", "System.Net.Http")
    .AddPyroscope(
        settings =>
        {
            settings.ApplicationName = "orders";
            settings.AllocationProfilingEnabled = true;
            settings.ContentionProfilingEnabled = true;
            settings.ExceptionProfilingEnabled = true;
            settings.Logger = app.Services.GetRequiredService<ILoggerFactory>().CreateLogger("Pyroscope");
        },
        SpanScope.All)
    .AddOtlpExporter(exporter => exporter.Protocol = OtlpExportProtocol.HttpProtobuf)
    .Build();

// Spans are named by their route, as the instrumentation package does it.
app.Use((context, next) =>
{
    if (Activity.Current is { } span && context.GetEndpoint() is RouteEndpoint endpoint)
    {
        span.DisplayName = $"{context.Request.Method} {endpoint.RoutePattern.RawText}";
    }

    return next(context);
});
using var client = new HttpClient();
app.MapGet("/price/{order:int}", (int order) => Work.Price(order));
app.MapGet("/stock/{item:int}", (int item) => Work.Stock(item));
app.MapGet("/orders/{order:int}", async (int order, HttpRequest request) =>
{
    var here = $"{request.Scheme}://{request.Host}";
    await Work.Validate(order);
    var stock = await Task.WhenAll(Enumerable.Range(0, 3).Select(item => client.GetStringAsync($"{here}/stock/{item}")));
    var price = await client.GetStringAsync($"{here}/price/{order}");
    return Results.Text(await Work.Render(order, price, stock), "application/json");
});
app.Run();
