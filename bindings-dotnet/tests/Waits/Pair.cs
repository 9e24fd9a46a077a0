using System.Collections.Concurrent;
using System.IO.Pipes;
using System.Net;
using System.Net.Sockets;
using System.Runtime.CompilerServices;

namespace Waits;

/// <summary>Two threads that wait for each other, in each way in which one thread can wait for another.</summary>
sealed class Pair : IDisposable
{
    const MethodImplOptions Apart = MethodImplOptions.NoInlining;
    const int Rounds = 20;
    const int End = -1;

    readonly BlockingCollection<int> commands = [];
    readonly object gate = new();
    readonly SemaphoreSlim[] semaphores = [new(0), new(0)];
    readonly AutoResetEvent[] events = [new(false), new(false)];
    readonly ManualResetEventSlim[] slimEvents = [new(), new()];
    readonly Barrier barrier = new(2);
    readonly ReaderWriterLockSlim readers = new();
    readonly AnonymousPipeServerStream[] writes = [new(PipeDirection.Out), new(PipeDirection.Out)];
    readonly AnonymousPipeClientStream[] reads;
    readonly Socket[] sockets;
    readonly (string Span, Func<int, int> Work)[] kinds;
    int turn, command;

    public Pair()
    {
        reads = [.. writes.Select(server => new AnonymousPipeClientStream(PipeDirection.In, server.ClientSafePipeHandle))];
        sockets = Connected();
        kinds =
        [
            ("turns", Turns), ("contends", Contends), ("semaphores", Semaphores), ("events", Events), ("slim events", SlimEvents),
            ("barrier", Meets), ("readers", Reads), ("pipes", Pipes), ("sockets", Sockets),
        ];
    }

    /// <summary>What the first thread does.</summary>
    [MethodImpl(Apart)]
    public void Lead(Random random)
    {
        while (!Spans.Over) Both(random.Next(kinds.Length));
        commands.Add(End);
    }

    /// <summary>Each once, so that all is compiled.</summary>
    [MethodImpl(Apart)]
    public void Warm()
    {
        for (var kind = 0; kind < kinds.Length; kind++) Both(kind);
        commands.Add(End);
    }

    [MethodImpl(Apart)]
    void Both(int kind)
    {
        commands.Add(kind);
        Spans.One(kinds[kind].Span, kinds[kind].Work, 0);
    }

    /// <summary>What the second one does.</summary>
    [MethodImpl(Apart)]
    public void Follow()
    {
        while (true)
        {
            Spans.One("takes", Take, 0);
            if (command == End) return;
            Spans.One(kinds[command].Span, kinds[command].Work, 1);
        }
    }

    [MethodImpl(Apart)]
    int Take(int none) => (command = commands.Take()) + none;

    [MethodImpl(Apart)]
    int Turns(int me)
    {
        for (var round = 0; round < Rounds; round++)
            lock (gate)
            {
                while (turn != me) Monitor.Wait(gate);
                turn = 1 - me;
                Monitor.Pulse(gate);
            }
        return me;
    }

    [MethodImpl(Apart)]
    int Contends(int me)
    {
        for (var round = 0; round < Rounds; round++)
            lock (gate) me += Hold(300);
        return me;
    }

    [MethodImpl(Apart)]
    static int Hold(int spins)
    {
        Thread.SpinWait(spins);
        return spins;
    }

    [MethodImpl(Apart)]
    int Semaphores(int me)
    {
        for (var round = 0; round < Rounds; round++)
        {
            if (me == 0) semaphores[1].Release();
            semaphores[me].Wait();
            if (me == 1) semaphores[0].Release();
        }
        return me;
    }

    [MethodImpl(Apart)]
    int Events(int me)
    {
        for (var round = 0; round < Rounds; round++)
        {
            if (me == 0) events[1].Set();
            events[me].WaitOne();
            if (me == 1) events[0].Set();
        }
        return me;
    }

    [MethodImpl(Apart)]
    int SlimEvents(int me)
    {
        for (var round = 0; round < Rounds; round++)
        {
            if (me == 0) slimEvents[1].Set();
            slimEvents[me].Wait();
            slimEvents[me].Reset();
            if (me == 1) slimEvents[0].Set();
        }
        return me;
    }

    [MethodImpl(Apart)]
    int Meets(int me)
    {
        for (var round = 0; round < Rounds; round++) barrier.SignalAndWait();
        return me;
    }

    [MethodImpl(Apart)]
    int Reads(int me)
    {
        for (var round = 0; round < Rounds; round++)
        {
            readers.EnterWriteLock();
            try { me += Hold(300); }
            finally { readers.ExitWriteLock(); }
            readers.EnterReadLock();
            try { me += Hold(100); }
            finally { readers.ExitReadLock(); }
        }
        return me;
    }

    [MethodImpl(Apart)]
    int Pipes(int me)
    {
        for (var round = 0; round < Rounds; round++)
        {
            if (me == 0) writes[1].WriteByte(1);
            _ = reads[me].ReadByte();
            if (me == 1) writes[0].WriteByte(1);
        }
        return me;
    }

    [MethodImpl(Apart)]
    int Sockets(int me)
    {
        var bytes = new byte[1];
        for (var round = 0; round < Rounds; round++)
        {
            if (me == 0) sockets[0].Send(bytes);
            if (round % 3 == 0) sockets[me].Poll(1_000_000, SelectMode.SelectRead);
            if (round % 3 == 1) Socket.Select(new List<Socket> { sockets[me] }, null, null, 1_000_000);
            sockets[me].Receive(bytes);
            if (me == 1) sockets[1].Send(bytes);
        }
        return me;
    }

    public static Socket[] Connected()
    {
        using var listener = new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp);
        listener.Bind(new IPEndPoint(IPAddress.Loopback, 0));
        listener.Listen();
        var first = new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp) { NoDelay = true };
        first.Connect(listener.LocalEndPoint!);
        var second = listener.Accept();
        second.NoDelay = true;
        return [first, second];
    }

    public void Dispose()
    {
        foreach (var each in new IDisposable[][] { [commands, barrier, readers], semaphores, events, slimEvents, reads, writes, sockets }.SelectMany(some => some)) each.Dispose();
    }
}
