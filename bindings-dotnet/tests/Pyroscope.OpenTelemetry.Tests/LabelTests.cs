using Pyroscope.Context;

namespace Pyroscope.Tests;

/// <summary>Labels are in force where the code that set them goes on, and nowhere else.</summary>
public sealed class LabelTests
{
    private static readonly LabelSet Eu = Held(LabelSet.Empty.BuildUpon().Add("region", "eu"));
    private static readonly LabelSet Us = Held(LabelSet.Empty.BuildUpon().Add("region", "us"));

    private static unsafe uint Here => ThreadBlock.Own->Tags;

    [Fact]
    public void Labels_nest_and_end_also_where_the_action_throws()
    {
        LabelsWrapper.Do(Eu, () =>
        {
            Assert.Equal(Eu.Number, Here);
            Assert.Throws<InvalidOperationException>(() => LabelsWrapper.Do(Us, (Action)(() =>
            {
                Assert.Equal(Us.Number, Here);
                throw new InvalidOperationException();
            })));
            LabelsWrapper.Do(Us, text => Assert.Equal((Us.Number, "state"), (Here, text)), "state");
            Assert.Equal(Eu.Number, Here);
        });
        Assert.Equal(0u, Here);
        Assert.NotEqual(Eu.Number, Us.Number);
        Assert.NotEqual(0u, Eu.Number);
    }

    [Fact]
    public async Task Labels_follow_awaits_tasks_and_results()
    {
        var result = await LabelsWrapper.Do(Eu, async () =>
        {
            await Task.Yield();
            Assert.Equal(Eu.Number, Here);
            await Task.WhenAll(
                Task.Run(() => Assert.Equal(Eu.Number, Here)),
                LabelsWrapper.Do(Us, async _ =>
                {
                    await Task.Delay(1);
                    Assert.Equal(Us.Number, Here);
                }, 0));
            Assert.Equal(Eu.Number, Here);
            return await LabelsWrapper.Do(Us, number => Task.FromResult(number + 1), 41);
        });
        Assert.Equal(42, result);
        Assert.Equal(0u, Here);
    }

    [Fact]
    public void Sets_of_the_same_labels_are_one_and_building_upon_one_adds()
    {
        var again = Held(LabelSet.Empty.BuildUpon().Add("region", "us").Add("region", "eu"));
        Assert.Equal(Eu.Number, again.Number);
        var both = Eu.BuildUpon().Add("tier", "1");
        var first = Held(both);
        both.Add("tier", "2");
        Assert.NotEqual(first.Number, Held(both).Number);
        Assert.Equal(0u, Held(LabelSet.Empty.BuildUpon()).Number);
    }

    [Theory]
    [InlineData("span_id")]
    [InlineData("__x")]
    [InlineData("two words")]
    [InlineData("")]
    [InlineData("1a")]
    public void A_name_that_servers_do_not_take_is_left_out(string name) =>
        Assert.Equal(Eu.Number, Held(Eu.BuildUpon().Add(name, "x")).Number);

    [Fact]
    public async Task Dynamic_tags_belong_to_the_flow_that_set_them()
    {
        await Task.Run(async () =>
        {
            Profiler.Instance.SetDynamicTag("region", "eu");
            Assert.Equal(Eu.Number, Here);
            await Task.Yield();
            Assert.Equal(Eu.Number, Here);
            Profiler.Instance.SetDynamicTags(new() { ["region"] = "us" });
            Assert.Equal(Us.Number, Here);
            Profiler.Instance.ClearDynamicTags();
            Assert.Equal(0u, Here);
            Eu.Activate();
            Assert.Equal(Eu.Number, Here);
        }, TestContext.Current.CancellationToken);
        Assert.Equal(0u, Here);
    }

    [Fact]
    public void Sets_that_nobody_holds_any_more_make_room()
    {
        using var run = new ProfiledRun();
        // Twice as many as may be alive at once.
        for (var round = 0; round < 20; round++)
        {
            MakeSets(round);
            GC.Collect();
            GC.WaitForPendingFinalizers();
            // A number is given again when no sample can have its old meaning any more, which takes a window.
            Profiler.Instance.Flush();
        }

        Assert.NotEqual(0u, Held(LabelSet.Empty.BuildUpon().Add("last", "one")).Number);
    }

    [System.Runtime.CompilerServices.MethodImpl(System.Runtime.CompilerServices.MethodImplOptions.NoInlining)]
    private static void MakeSets(int round)
    {
        for (var number = 0; number < 100; number++)
        {
            Held(LabelSet.Empty.BuildUpon().Add("round", $"{round}").Add("number", $"{number}"));
        }
    }

    private static LabelSet Held(LabelSet.Builder builder)
    {
        var labels = builder.Build();
        labels.Hold();
        return labels;
    }
}
