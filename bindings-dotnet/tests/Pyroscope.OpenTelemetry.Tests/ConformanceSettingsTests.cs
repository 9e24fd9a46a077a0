using System.Collections;
using System.Text.Json.Nodes;
using System.Text.RegularExpressions;

namespace Pyroscope.Tests;

/// <summary>The vectors that all languages share, of settings, tags and statistics. Names are written as C# does.</summary>
public sealed partial class ConformanceSettingsTests : IDisposable
{
    private const string NobodyThere = "127.0.0.1:9";
    private static readonly JsonNode Settings = Vectors.Read("settings");
    private static readonly JsonNode Tags = Vectors.Read("tags");
    private static readonly JsonNode Stats = Vectors.Read("stats");

    private readonly Dictionary<string, string?> before = Ours();

    public static TheoryData<string> Cases() => [.. Settings["cases"]!.AsArray().Select(each => (string)each!["name"]!)];

    public static TheoryData<string> RefusedNames() => [.. Vectors.Texts(Tags["refused_names"]).Keys];

    [Theory]
    [MemberData(nameof(Cases))]
    public void Settings_are_sent_or_refused_as_in_every_language(string name)
    {
        var each = Settings["cases"]!.AsArray().Single(each => (string)each!["name"]! == name)!;
        if (each["error"] is { } error)
        {
            Assert.Equal(AsWrittenHere((string)error!), Refused(() => Configure(each, NobodyThere)));
        }
        else if (each["starts"] is { } starts)
        {
            Assert.Equal((bool)starts, Configure(each, NobodyThere, configuration => configuration.ServerAddress = "none"));
        }
        else
        {
            var push = Send(place => Configure(each, place));
            var sent = each["sent"]!;
            Assert.Equal((string?)sent["path"] ?? push.Path, push.Path);
            Assert.Equal((long?)sent["period"] ?? push.Profile.Period, push.Profile.Period);
            Assert.All(Vectors.Texts(sent["headers"]), header => Assert.Equal(header.Value, push.Headers.GetValueOrDefault(header.Key)));
            Assert.All(Vectors.Texts(sent["labels"]), label => Assert.Equal(label.Value, push.Labels.GetValueOrDefault(label.Key)));
        }
    }

    [Fact]
    public void Names_of_tags()
    {
        Assert.All(Tags["names"]!.AsArray(), name => Assert.True(WithTags(new() { [(string)name!] = "x" })));
        var most = Enumerable.Range(0, (int)Tags["most"]!).ToDictionary(number => $"t{number}", _ => "");
        Assert.True(WithTags(most));
        most["more"] = "";
        Assert.Equal(AsWrittenHere((string)Tags["too_many"]!), Refused(() => WithTags(most)));
    }

    [Theory]
    [MemberData(nameof(RefusedNames))]
    public void Names_of_tags_that_are_refused_as_a_setting_and_left_out_of_labels_and_told_once(string name)
    {
        var why = (string)Tags["refused_names"]![name]!;
        Assert.Equal($"Tags: {why}", Refused(() => WithTags(new() { [name] = "x" })));
        for (var time = 0; time < 2; time++)
        {
            LabelsWrapper.Do(LabelSet.Empty.BuildUpon().Add(name, "x").Build(), () => { });
        }

        Assert.Single(Told.All, $"LabelSet: {why}; the tag is left out");
    }

    [Fact]
    public void Values_of_tags()
    {
        foreach (var each in Tags["values"]!.AsArray())
        {
            var tags = new Dictionary<string, string> { ["cut"] = Vectors.Text(each!["value"]!) };
            var push = Send(place => Profiler.Instance.Configure(new() { ApplicationName = "app", ServerAddress = place, SampleRate = 1000, Tags = tags }));
            Assert.Equal(Vectors.Text(each["label"]!), push.Labels["cut"]);
        }
    }

    [Fact]
    public void Statistics_have_the_names_of_every_language_and_add_up()
    {
        Assert.True(WithTags([]));
        Vectors.BurnUntilSampled();
        var stats = Profiler.Instance.Stats;
        var tallies = Names(Stats["tallies"]!);
        Assert.Equal(tallies.SelectMany(name => new[] { $"{name}_samples", $"{name}_weight" }).Concat(Names(Stats["numbers"]!)), stats.Numbers.Keys);
        Assert.All(Names(Stats["texts"]!), name => Assert.IsType<string>(Property(stats, name)));
        Assert.All(tallies, name => Assert.Equal(new Tally(stats.Numbers[$"{name}_samples"], stats.Numbers[$"{name}_weight"]), Property(stats, name)));
        AddUp(stats);

        Profiler.Instance.Dispose();
        stats = Profiler.Instance.Stats;
        AddUp(stats);
        Assert.True(stats.Taken.Samples > 0);
        Assert.All(Names(Stats["nothing_after_a_stop"]!), name => Assert.Equal(default(Tally), Property(stats, name)));
    }

    public void Dispose()
    {
        Profiler.Instance.Dispose();
        foreach (var name in Ours().Keys.Union(before.Keys))
        {
            Environment.SetEnvironmentVariable(name, before.GetValueOrDefault(name));
        }
    }

    private static void AddUp(ProfilerStats stats)
    {
        foreach (var (name, parts) in Stats["sums"]!.AsObject())
        {
            foreach (var unit in stats.Numbers.ContainsKey(name) ? [""] : new[] { "_samples", "_weight" })
            {
                var sum = Names(parts!).Aggregate(0ul, (sum, part) => sum + stats.Numbers[part + unit]);
                Assert.Equal((name + unit, stats.Numbers[name + unit]), (name + unit, sum));
            }
        }
    }

    /// <summary>The environment and the settings of a case.</summary>
    private static bool Configure(JsonNode each, string place, Action<ProfilerConfiguration>? change = null)
    {
        string? Fill(string? text) => text?.Replace("PLACE", place, StringComparison.Ordinal);
        foreach (var (name, value) in Vectors.Texts(Settings["defaults"]).Concat(Vectors.Texts(each["environment"])))
        {
            Environment.SetEnvironmentVariable(name, Fill(value));
        }

        var configuration = new ProfilerConfiguration();
        foreach (var (name, value) in each["settings"]?.AsObject() ?? [])
        {
            var property = typeof(ProfilerConfiguration).GetProperty(SettingHere(name))!;
            property.SetValue(configuration, property.Name switch
            {
                nameof(ProfilerConfiguration.SampleRate) => (int)value!,
                nameof(ProfilerConfiguration.UploadInterval) => TimeSpan.FromSeconds((double)value!),
                nameof(ProfilerConfiguration.Tags) or nameof(ProfilerConfiguration.HttpHeaders) => Vectors.Texts(value),
                _ => Fill((string?)value),
            });
        }

        change?.Invoke(configuration);
        return Profiler.Instance.Configure(configuration);
    }

    private static bool WithTags(Dictionary<string, string> tags) =>
        Profiler.Instance.Configure(new() { ApplicationName = "app", ServerAddress = "none", SampleRate = 1000, Tags = tags });

    /// <summary>The first upload after this start.</summary>
    private static Push Send(Func<string, bool> configure)
    {
        using var receiver = new PushReceiver();
        Assert.True(configure(receiver.Place), Profiler.Instance.Status.Reason);
        Vectors.BurnUntilSampled();
        Profiler.Instance.Dispose();
        var pushes = receiver.Pushes();
        Assert.True(pushes.Length > 0, Profiler.Instance.Stats.LastError);
        return pushes[0];
    }

    /// <summary>What an ArgumentException says, without the end that .NET adds: the property's name once more.</summary>
    private static string Refused(Func<bool> configure)
    {
        var error = Assert.Throws<ArgumentException>(() => configure());
        var added = $" (Parameter '{error.ParamName}')";
        Assert.EndsWith(added, error.Message);
        return error.Message[..^added.Length];
    }

    /// <summary>An error with the name of the property; variables have the same name in all languages.</summary>
    private static string AsWrittenHere(string error) => SettingName().Replace(error, name => SettingHere(name.Value), 1);

    /// <summary>The property of a setting, of which one has another name here.</summary>
    private static string SettingHere(string name) => name == "basic_auth_username" ? "BasicAuthUser" : Vectors.InPascalCase(name);

    private static object? Property(ProfilerStats stats, string name) => typeof(ProfilerStats).GetProperty(Vectors.InPascalCase(name))!.GetValue(stats);

    private static string[] Names(JsonNode list) => list.AsArray().Select(name => (string)name!).ToArray();

    private static Dictionary<string, string?> Ours() => Environment.GetEnvironmentVariables().Cast<DictionaryEntry>()
        .Where(variable => Regex.IsMatch((string)variable.Key, "^(PYROSCOPE|OTEL)_"))
        .ToDictionary(variable => (string)variable.Key, variable => (string?)variable.Value);

    [GeneratedRegex("^[a-z_]+(?=: )")]
    private static partial Regex SettingName();
}
