using System.Buffers;
using System.Collections.Concurrent;
using System.Runtime.CompilerServices;
using System.Text;
using Pyroscope.Interop;

namespace Pyroscope.Context;

/// <summary>
/// The name of a span as a signal handler can read it: native memory that stays. Names of operations are few and mostly
/// literals, so nearly every lookup is one comparison of references.
/// </summary>
internal sealed unsafe class SpanName
{
    /// <summary>Names that are kept. Spans with further ones have no name until they end.</summary>
    private const int Most = 2048;

    private const int Recent = 256;

    private static readonly ConcurrentDictionary<string, SpanName> All = new(StringComparer.Ordinal);
    private static readonly SpanName?[] Last = new SpanName?[Recent];
    private static int count;

    private readonly string name;

    private SpanName(string name, byte* text, uint length)
    {
        this.name = name;
        Text = text;
        Length = length;
    }

    internal byte* Text { get; }

    internal uint Length { get; }

    /// <summary>The kept name, or null where there are too many. Hot: about 2 ns for a literal, 25 ns for other text.</summary>
    internal static SpanName? Of(string name)
    {
        ref var slot = ref Last[RuntimeHelpers.GetHashCode(name) & (Recent - 1)];
        var recent = slot;
        if (recent is not null && ReferenceEquals(recent.name, name))
        {
            return recent;
        }

        if (!All.TryGetValue(name, out var found))
        {
            return Keep(name);
        }

        if (ReferenceEquals(found.name, name))
        {
            slot = found;
        }

        return found;
    }

    /// <summary>Calls <paramref name="use"/> with the text as UTF-8.</summary>
    internal static nint WithUtf8(string text, ulong argument, delegate*<ulong, byte*, nuint, nint> use)
    {
        var most = Encoding.UTF8.GetMaxByteCount(text.Length);
        byte[]? rented = null;
        var bytes = most <= 1024 ? stackalloc byte[most] : rented = ArrayPool<byte>.Shared.Rent(most);
        try
        {
            var length = Encoding.UTF8.GetBytes(text, bytes);
            fixed (byte* start = bytes)
            {
                return use(argument, start, (nuint)length);
            }
        }
        finally
        {
            if (rented is not null)
            {
                ArrayPool<byte>.Shared.Return(rented);
            }
        }
    }

    private static SpanName? Keep(string name)
    {
        if (Volatile.Read(ref count) >= Most)
        {
            return null;
        }

        var text = (byte*)WithUtf8(name, 0, &Intern);
        if (text == null)
        {
            return null;
        }

        Interlocked.Increment(ref count);
        return All.GetOrAdd(name, new SpanName(name, text, (uint)Encoding.UTF8.GetByteCount(name)));
    }

    private static nint Intern(ulong none, byte* name, nuint length) => (nint)HotNative.InternName(name, length);
}
