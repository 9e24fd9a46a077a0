using System.Diagnostics;
using System.Threading.Channels;
using Microsoft.AspNetCore.Builder;
using Microsoft.AspNetCore.Hosting;
using Microsoft.AspNetCore.Http;
using Microsoft.AspNetCore.Http.Features;
using Microsoft.Extensions.DependencyInjection;
using Microsoft.Extensions.Hosting;
using Microsoft.Extensions.Logging;

namespace Pyroscope.Tests;

/// <summary>
/// The ways in which .NET carries a current span from one piece of code to another. Each says at its checkpoints which
/// span is current by its own structure.
/// </summary>
internal sealed class ContextScenarios(Checkpoints at)
{
    private static readonly TrueSpan None = TrueSpan.None;

    internal Task NestedCalls() => Many(4, 50, () =>
    {
        using var root = TrueSpan.Start("root");
        at.At(root);
        using (var child = TrueSpan.Start("child", root))
        {
            at.At(child);
            using (var grandchild = TrueSpan.Start("grandchild", child))
            {
                at.At(grandchild);
            }

            at.At(child);
        }

        at.At(root);
        return Task.CompletedTask;
    });

    internal Task AwaitsOnOtherThreads() => Many(20, 10, async () =>
    {
        using var root = TrueSpan.Start("root");
        at.At(root);
        await Task.Delay(1);
        at.At(root);
        using (var child = TrueSpan.Start("child", root))
        {
            await Task.Yield();
            at.At(child);
            await Task.Delay(1).ConfigureAwait(false);
            at.At(child);
            await Helper(child);
            at.At(child);
        }

        at.At(root);
        await Task.Yield();
        at.At(root);
    });

    internal Task TaskRunAndContinuations() => Many(4, 20, async () =>
    {
        using var root = TrueSpan.Start("root");
        await Task.Run(() =>
        {
            at.At(root);
            using var child = TrueSpan.Start("child", root);
            at.At(child);
        });
        at.At(root);
        await Task.Factory.StartNew(() => at.At(root), default, TaskCreationOptions.LongRunning, TaskScheduler.Default);
        await Task.Run(() => at.At(root)).ContinueWith(_ => at.At(root));
        at.At(root);
    });

    internal Task TwoHundredAtOnce() => Many(1, 4, () => Task.WhenAll(Enumerable.Range(0, 200).Select(async number =>
    {
        await Task.Yield();
        using var root = TrueSpan.Start("root");
        at.At(root);
        using (var child = TrueSpan.Start("child", root))
        {
            await Task.Delay(1 + (number % 7));
            at.At(child);
            await Task.Yield();
            at.At(child);
        }

        at.At(root);
    })));

    internal Task ParallelLoops() => Many(2, 10, async () =>
    {
        using var root = TrueSpan.Start("root");
        Parallel.ForEach(Enumerable.Range(0, 16), new ParallelOptions { MaxDegreeOfParallelism = 4 }, _ =>
        {
            at.At(root);
            using var child = TrueSpan.Start("child", root);
            at.At(child);
        });
        at.At(root);
        await Parallel.ForEachAsync(Enumerable.Range(0, 16), async (_, _) =>
        {
            at.At(root);
            await Task.Yield();
            using var child = TrueSpan.Start("child", root);
            await Task.Delay(1);
            at.At(child);
        });
        at.At(root);
    });

    internal Task TimerMadeInSpan() => Many(6, 5, async () =>
    {
        using var root = TrueSpan.Start("root");
        var ticks = 0;
        var done = new TaskCompletionSource();
        await using (new Timer(
            _ =>
            {
                at.At(root);
                if (Interlocked.Increment(ref ticks) == 3)
                {
                    done.SetResult();
                }
            }, null, 1, 2))
        {
            await done.Task;
        }

        at.At(root);
    });

    internal async Task TimerMadeOutside()
    {
        var ticks = 0;
        var done = new TaskCompletionSource();
        await using var timer = new Timer(
            _ =>
            {
                at.At(None);
                using (var root = TrueSpan.Start("root"))
                {
                    at.At(root);
                }

                at.At(None);
                if (Interlocked.Increment(ref ticks) == 50)
                {
                    done.SetResult();
                }
            }, null, 1, 1);
        await done.Task;
    }

    internal async Task ChannelsWithPassedContext()
    {
        var channel = Channel.CreateBounded<ActivityContext>(16);
        var consumers = Enumerable.Range(0, 4).Select(_ => Task.Run(async () =>
        {
            await foreach (var context in channel.Reader.ReadAllAsync())
            {
                at.At(None);
                // A parent that is only an id has its object elsewhere, so this is a local root.
                using (var consumed = TrueSpan.Of(TrueSpan.Source.StartActivity("consume", ActivityKind.Consumer, context)!))
                {
                    at.At(consumed);
                    await Task.Yield();
                    at.At(consumed);
                }

                using (var linked = TrueSpan.Of(TrueSpan.Source.StartActivity("linked", ActivityKind.Consumer, default(ActivityContext), links: [new(context)])!))
                {
                    await Task.Delay(1);
                    at.At(linked);
                }

                at.At(None);
            }
        })).ToArray();
        await Many(4, 20, async () =>
        {
            using var produced = TrueSpan.Start("produce");
            await channel.Writer.WriteAsync(produced.Activity!.Context);
            at.At(produced);
        });
        channel.Writer.Complete();
        await Task.WhenAll(consumers);
    }

    internal Task AsyncIterators() => Many(8, 10, async () =>
    {
        using var root = TrueSpan.Start("root");
        await foreach (var _ in Numbers(root))
        {
            at.At(root);
            await Task.Yield();
            at.At(root);
        }

        at.At(root);
    });

    /// <summary>Activity.Current itself is wrong here: it leaks out of the iterator.</summary>
    internal Task AsyncIteratorsThatHoldTheirSpan() => Many(8, 10, async () =>
    {
        using var root = TrueSpan.Start("root");
        await foreach (var _ in NumbersInOneSpan(root))
        {
            at.At(root);
        }

        at.At(root);
    });

    internal Task UnsafeQueueUserWorkItem() => Many(4, 20, async () =>
    {
        using var root = TrueSpan.Start("root");
        await Queued(done => ThreadPool.UnsafeQueueUserWorkItem(
            _ =>
            {
                at.At(None);
                using (var other = TrueSpan.Start("other"))
                {
                    at.At(other);
                }

                at.At(None);
                done();
            }, null));
        at.At(root);
        await Queued(done => ThreadPool.QueueUserWorkItem(_ =>
        {
            at.At(root);
            done();
        }));
        at.At(root);
    });

    internal Task SuppressedFlow() => Many(4, 20, async () =>
    {
        using var root = TrueSpan.Start("root");
        Task task;
        using (ExecutionContext.SuppressFlow())
        {
            task = Task.Run(() =>
            {
                at.At(None);
                using var other = TrueSpan.Start("other");
                at.At(other);
            });
            at.At(root);
        }

        await task;
        at.At(root);
    });

    internal Task Threads() => Many(3, 10, async () =>
    {
        using var root = TrueSpan.Start("root");
        var thread = new Thread(() =>
        {
            at.At(root);
            using (var child = TrueSpan.Start("child", root))
            {
                at.At(child);
            }

            at.At(root);
        });
        thread.Start();
        thread.Join();
        var apart = new Thread(() =>
        {
            at.At(None);
            using var other = TrueSpan.Start("other");
            at.At(other);
        });
        apart.UnsafeStart();
        apart.Join();
        at.At(root);
        await Task.Yield();
        at.At(root);
    });

    internal Task CurrentSetByHand() => Many(6, 20, async () =>
    {
        var a = TrueSpan.Start("a");
        Activity.Current = null;
        at.At(None);
        var b = TrueSpan.Start("b");
        at.At(b);
        Activity.Current = a.Activity;
        at.At(a);
        await Task.Yield();
        at.At(a);
        Activity.Current = b.Activity;
        at.At(b);
        using (var c = TrueSpan.Start("c", b))
        {
            Activity.Current = a.Activity;
            at.At(a);
            Activity.Current = c.Activity;
            at.At(c);
        }

        at.At(b);
        Activity.Current = null;
        await Task.Yield();
        at.At(None);
        Activity.Current = a.Activity;
        a.Dispose();
        Activity.Current = b.Activity;
        at.At(b);
        b.Dispose();
        at.At(None);
    });

    /// <summary>Activity.Current itself is wrong here: the flow that the span was current in is not told.</summary>
    internal Task StoppedByAnotherFlow() => Many(6, 20, async () =>
    {
        using var root = TrueSpan.Start("root");
        var child = TrueSpan.Start("child", root);
        at.At(child);
        await Queued(done => ThreadPool.UnsafeQueueUserWorkItem(
            _ =>
            {
                at.At(None);
                child.Dispose();
                done();
            }, null));
        at.At(root);
        await Task.Yield();
        at.At(root);
    });

    internal Task StoppedByAnotherFlowAndSetRight() => Many(6, 20, async () =>
    {
        using var root = TrueSpan.Start("root");
        var child = TrueSpan.Start("child", root);
        await Queued(done => ThreadPool.UnsafeQueueUserWorkItem(
            _ =>
            {
                child.Dispose();
                Activity.Current = null;
                at.At(None);
                done();
            }, null));
        Activity.Current = root.Activity;
        at.At(root);
        await Task.Yield();
        at.At(root);
    });

    internal Task UnsampledAndBareActivities() => Many(6, 20, async () =>
    {
        using (TrueSpan.Source.StartActivity("unsampled"))
        {
            at.At(None);
            await Task.Yield();
            at.At(None);
            using (var sampled = TrueSpan.Start("sampled"))
            {
                at.At(sampled);
                using (TrueSpan.Source.StartActivity("unsampled"))
                {
                    at.At(sampled);
                    await Task.Delay(1);
                    at.At(sampled);
                }

                using var child = TrueSpan.Start("child", sampled);
                at.At(child);
            }

            at.At(None);
        }

        using var root = TrueSpan.Start("root");
        using (new Activity("bare").Start())
        {
            at.At(root);
            await Task.Yield();
            using var child = TrueSpan.Start("child", root);
            at.At(child);
            await Task.Yield();
            at.At(child);
        }

        at.At(root);
    });

    internal Task FireAndForget() => Many(8, 10, async () =>
    {
        Task task;
        using (var root = TrueSpan.Start("root"))
        {
            task = Task.Run(async () =>
            {
                await Task.Delay(2);
                // It has ended by now, and nothing else is current: its late work is still its own.
                at.At(root);
                await Task.Yield();
                at.At(root);
            });
        }

        at.At(None);
        await task;
        at.At(None);
    });

    internal Task TaskThatOutlivesItsSpan() => Many(3, 20, async () =>
    {
        Task task;
        var ended = new TaskCompletionSource(TaskCreationOptions.RunContinuationsAsynchronously);
        using (var root = TrueSpan.Start("root"))
        {
            task = Task.Run(() =>
            {
                ended.Task.Wait();
                at.At(root);
            });
        }

        using (var next = TrueSpan.Start("next"))
        {
            ended.SetResult();
            at.At(next);
            await task;
            at.At(next);
        }
    });

    internal async Task HostedServices()
    {
        var builder = Host.CreateApplicationBuilder();
        builder.Logging.ClearProviders();
        var services = Enumerable.Range(0, 3).Select(_ => new Ticking(at)).ToArray();
        foreach (var service in services)
        {
            builder.Services.AddSingleton<IHostedService>(service);
        }

        using var host = builder.Build();
        await host.StartAsync();
        await Task.WhenAll(services.Select(service => service.Done.Task));
        await host.StopAsync();
    }

    internal async Task AspNetCoreAndHttpClient()
    {
        var builder = WebApplication.CreateBuilder();
        builder.Logging.ClearProviders();
        builder.WebHost.UseUrls("http://127.0.0.1:0");
        await using var app = builder.Build();
        app.MapGet("/work", async (HttpContext context) =>
        {
            // Its parent is the client's span, by header: an id without an object, so it is a local root.
            var server = TrueSpan.Of(context.Features.Get<IHttpActivityFeature>()!.Activity);
            at.At(server);
            using (var child = TrueSpan.Start("query", server))
            {
                await Task.Delay(1);
                at.At(child);
            }

            at.At(server);
            return "done";
        });
        await app.StartAsync();
        using var client = new HttpClient();
        var address = $"{app.Urls.First()}/work";
        await Many(16, 10, async () =>
        {
            using var root = TrueSpan.Start("client");
            at.At(root);
            await client.GetStringAsync(address);
            at.At(root);
        });
        await app.StopAsync();
    }

    private static async Task Many(int atOnce, int times, Func<Task> scenario) =>
        await Task.WhenAll(Enumerable.Range(0, atOnce).Select(_ => Task.Run(async () =>
        {
            for (var time = 0; time < times; time++)
            {
                await scenario();
            }
        })));

    private static Task Queued(Action<Action> queue)
    {
        var done = new TaskCompletionSource(TaskCreationOptions.RunContinuationsAsynchronously);
        queue(done.SetResult);
        return done.Task;
    }

    private async Task Helper(TrueSpan parent)
    {
        await Task.Yield();
        using var helper = TrueSpan.Start("helper", parent);
        await Task.Delay(1);
        at.At(helper);
    }

    private async IAsyncEnumerable<int> Numbers(TrueSpan parent)
    {
        for (var number = 0; number < 5; number++)
        {
            using (var step = TrueSpan.Start("step", parent))
            {
                await Task.Delay(1);
                at.At(step);
            }

            yield return number;
            at.At(parent);
        }
    }

    private async IAsyncEnumerable<int> NumbersInOneSpan(TrueSpan parent)
    {
        using var all = TrueSpan.Start("all", parent);
        for (var number = 0; number < 5; number++)
        {
            at.At(all);
            yield return number;
            await Task.Yield();
            at.At(all);
        }
    }

    private sealed class Ticking(Checkpoints at) : BackgroundService
    {
        internal TaskCompletionSource Done { get; } = new();

        protected override async Task ExecuteAsync(CancellationToken stopping)
        {
            using var timer = new PeriodicTimer(TimeSpan.FromMilliseconds(1));
            for (var tick = 0; tick < 20 && await timer.WaitForNextTickAsync(CancellationToken.None); tick++)
            {
                at.At(None);
                using (var root = TrueSpan.Start("tick"))
                {
                    at.At(root);
                    await Task.Delay(1, CancellationToken.None);
                    at.At(root);
                }

                at.At(None);
            }

            Done.SetResult();
        }
    }
}
