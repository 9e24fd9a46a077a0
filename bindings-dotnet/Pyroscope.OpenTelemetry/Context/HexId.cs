using System.Buffers.Binary;
using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Runtime.Intrinsics;

namespace Pyroscope.Context;

/// <summary>
/// Ids of spans and traces as numbers. An Activity holds them as text; <c>CopyTo</c> reads that with two branches a
/// character, which random digits mispredict (150 ns for a span and its trace), and this without a branch (5 ns).
/// </summary>
internal static class HexId
{
    internal static ulong Of(ActivitySpanId id) => Parse(id.ToHexString(), 0);

    internal static (ulong High, ulong Low) Of(ActivityTraceId id)
    {
        var digits = id.ToHexString();
        return (Parse(digits, 0), Parse(digits, 16));
    }

    /// <summary>The same of 8 bytes that were read as one number, in the machine's order.</summary>
    internal static ulong FromMemory(ulong bytes) =>
        BitConverter.IsLittleEndian ? BinaryPrimitives.ReverseEndianness(bytes) : bytes;

    /// <summary>The value of 16 hexadecimal digits; 0 where there are fewer.</summary>
    internal static ulong Parse(string digits, int start)
    {
        if (digits.Length < start + 16)
        {
            return 0;
        }

        ref var first = ref Unsafe.As<char, ushort>(ref Unsafe.Add(ref MemoryMarshal.GetReference(digits.AsSpan()), start));
        var characters = Vector128.Narrow(Vector128.LoadUnsafe(ref first), Vector128.LoadUnsafe(ref first, 8));
        // Bit 6 tells letters from digits: a letter's low four bits begin with 1 for ten.
        // Shifted by two characters at a time, as the processor has no shift of bytes and .NET 8 calls a function for one.
        var letters = (characters.AsUInt16() >>> 6) & Vector128.Create((ushort)0x0101);
        var nibbles = (characters & Vector128.Create((byte)15)).AsUInt16() + letters + (letters << 3);
        var pairs = ((nibbles << 4) | (nibbles >>> 8)) & Vector128.Create((ushort)255);
        return BinaryPrimitives.ReverseEndianness(Vector128.Narrow(pairs, pairs).AsUInt64().ToScalar());
    }
}
