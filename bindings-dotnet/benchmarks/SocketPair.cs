using System.Net;
using System.Net.Sockets;

namespace Pyroscope.Benchmarks;

/// <summary>Two sockets that are connected with each other.</summary>
internal sealed class SocketPair : IDisposable
{
    internal SocketPair()
    {
        using var listener = Tcp();
        listener.Bind(new IPEndPoint(IPAddress.Loopback, 0));
        listener.Listen();
        One = Tcp();
        One.Connect(listener.LocalEndPoint!);
        Other = listener.Accept();
        One.NoDelay = Other.NoDelay = true;
    }

    internal Socket One { get; }

    internal Socket Other { get; }

    public void Dispose()
    {
        One.Dispose();
        Other.Dispose();
    }

    private static Socket Tcp() => new(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp);
}
