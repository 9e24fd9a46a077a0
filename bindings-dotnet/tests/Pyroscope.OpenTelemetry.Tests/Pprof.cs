using System.IO.Compression;
using System.Text;

namespace Pyroscope.Tests;

/// <summary>A sample: frames leaf first, values in the order of the profile's sample types, labels of text.</summary>
internal sealed record PprofSample(IReadOnlyList<string> Frames, IReadOnlyList<long> Values, IReadOnlyDictionary<string, string> Labels)
{
    internal string? Label(string name) => Labels.GetValueOrDefault(name);
}

/// <summary>
/// Reads pprof profiles with nothing but the base library: what the profiler writes is judged by a second reading of the
/// format (https://github.com/google/pprof/blob/main/proto/profile.proto). An index that points nowhere throws.
/// </summary>
internal sealed record Pprof(IReadOnlyList<(string Type, string Unit)> SampleTypes, IReadOnlyList<PprofSample> Samples, (string Type, string Unit) PeriodType, long Period)
{
    /// <summary>All profiles of a kind that <c>file:///folder</c> left, such as process_cpu.</summary>
    internal static IEnumerable<Pprof> ReadFolder(string folder, string kind) =>
        Directory.GetFiles(folder, $"*-{kind}-*.pb.gz").Order(StringComparer.Ordinal).Select(file =>
        {
            using var unzipped = new GZipStream(File.OpenRead(file), CompressionMode.Decompress);
            using var bytes = new MemoryStream();
            unzipped.CopyTo(bytes);
            return Read(bytes.ToArray());
        });

    internal static Pprof Read(byte[] bytes)
    {
        var profile = new Fields(bytes);
        var strings = profile.Many(6).Select(text => Encoding.UTF8.GetString(text.Span)).ToArray();
        Require(strings[0] == "", "the first string is not empty");
        Require(strings.Length == strings.Distinct().Count(), "a string is there twice");
        (string, string) Type(Fields type) => (strings[type.Number(1)], strings[type.Number(2)]);
        var functions = profile.Messages(5).ToDictionary(function => function.Number(1), function => strings[function.Number(2)]);
        var locations = profile.Messages(4).ToDictionary(
            location => location.Number(1),
            location => location.Messages(4).Select(line => functions[line.Number(1)]).ToArray());
        var types = profile.Messages(1).Select(Type).ToArray();
        var samples = profile.Messages(2).Select(sample => new PprofSample(
            sample.Numbers(1).SelectMany(location => locations[location]).ToArray(),
            sample.Numbers(2).ToArray(),
            sample.Messages(3).ToDictionary(label => strings[label.Number(1)], label => strings[label.Number(2)]))).ToArray();
        Require(samples.All(sample => sample.Values.Count == types.Length), "a sample has not one value for each type");
        return new Pprof(types, samples, Type(new Fields(profile.Many(11).Last())), profile.Number(12));
    }

    private static void Require(bool isRight, string otherwise)
    {
        if (!isRight)
        {
            throw new InvalidDataException(otherwise);
        }
    }

    /// <summary>The fields of one protobuf message.</summary>
    internal sealed class Fields
    {
        private readonly List<(long Field, long Number, ReadOnlyMemory<byte>? Bytes)> fields = [];

        internal Fields(ReadOnlyMemory<byte> message)
        {
            var at = 0;
            while (at < message.Length)
            {
                var tag = Varint(message.Span, ref at);
                var number = Varint(message.Span, ref at);
                switch (tag & 7)
                {
                    case 0:
                        fields.Add((tag >> 3, number, null));
                        break;
                    case 2:
                        fields.Add((tag >> 3, 0, message.Slice(at, (int)number)));
                        at += (int)number;
                        break;
                    default:
                        throw new InvalidDataException($"field {tag >> 3} has the wire type {tag & 7}");
                }
            }
        }

        internal IEnumerable<ReadOnlyMemory<byte>> Many(int field) => fields.Where(each => each.Field == field).Select(each => each.Bytes!.Value);

        internal IEnumerable<Fields> Messages(int field) => Many(field).Select(bytes => new Fields(bytes));

        internal long Number(int field) => fields.LastOrDefault(each => each.Field == field).Number;

        internal IEnumerable<long> Numbers(int field)
        {
            foreach (var (_, number, bytes) in fields.Where(each => each.Field == field))
            {
                if (bytes is not { } packed)
                {
                    yield return number;
                    continue;
                }

                for (var at = 0; at < packed.Length;)
                {
                    yield return Varint(packed.Span, ref at);
                }
            }
        }

        private static long Varint(ReadOnlySpan<byte> bytes, ref int at)
        {
            var value = 0ul;
            for (var shift = 0; ; shift += 7)
            {
                var next = bytes[at++];
                value |= (ulong)(next & 0x7f) << shift;
                if (next < 0x80)
                {
                    return (long)value;
                }
            }
        }
    }
}
