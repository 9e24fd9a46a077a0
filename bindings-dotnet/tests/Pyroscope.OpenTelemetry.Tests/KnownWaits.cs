using System.Collections.Concurrent;
using System.Diagnostics;
using System.IO.Pipes;
using System.Net;
using System.Net.Sockets;
using System.Runtime.CompilerServices;

namespace Pyroscope.Tests;

/// <summary>Ways to wait, each in a method that begins with the state that it is in.</summary>
internal static class KnownWaits
{
    /// <summary>What each waits for at least.</summary>
    internal const int Milliseconds = 30;

    private const MethodImplOptions Apart = MethodImplOptions.NoInlining;

    /// <summary>The methods, and how the innermost one begins that the stack of its wait must have.</summary>
    internal static readonly (Action Wait, string Innermost)[] All =
    [
        (sleep_for_a_time, "System.Threading.Thread.Sleep"),
        (lock_an_object, Environment.Version.Major < 9 ? "lock_an_object" : "System.Threading.Monitor.Enter"),
        (lock_monitor_wait, "System.Threading.Monitor.Wait"),
        (lock_event, "System.Threading.ManualResetEventSlim.Wait"),
        (lock_semaphore, "System.Threading.SemaphoreSlim.Wait"),
        (lock_wait_handle, "System.Threading.WaitHandle.WaitOne"),
        (lock_task, "System.Threading.Tasks.Task.Wait"),
        (lock_result, "System.Threading.Tasks.Task"),
        (lock_join, "System.Threading.Thread.Join"),
        (lock_collection, "System.Collections.Concurrent.BlockingCollection"),
        (lock_readers, "System.Threading.ReaderWriterLockSlim"),
        (io_receive, "Interop.Sys.Receive"),
        (io_accept, "Interop.Sys.Accept"),
        (io_poll, "Interop.Sys.Poll"),
        (io_read_pipe, "System.Net.Sockets.SocketPal"),
        (io_write_full_pipe, "System.Net.Sockets.SocketPal"),
        (child_process, "System.Diagnostics.Process"),
    ];

    private static void Later(Action action)
    {
        new Thread(() =>
        {
            Thread.Sleep(Milliseconds);
            action();
        }).UnsafeStart();
    }

    [MethodImpl(Apart)]
    internal static void sleep_for_a_time() => Thread.Sleep(Milliseconds);

    [MethodImpl(Apart)]
    internal static void lock_an_object()
    {
        var gate = new object();
        using var held = new ManualResetEventSlim();
        var holder = new Thread(() =>
        {
            lock (gate)
            {
                held.Set();
                Thread.Sleep(Milliseconds);
            }
        });
        holder.UnsafeStart();
        held.Wait();
        lock (gate)
        {
        }
    }

    [MethodImpl(Apart)]
    internal static void lock_monitor_wait()
    {
        var gate = new object();
        lock (gate)
        {
            Monitor.Wait(gate, Milliseconds);
        }
    }

    [MethodImpl(Apart)]
    internal static void lock_event()
    {
        using var set = new ManualResetEventSlim();
        Later(set.Set);
        set.Wait();
    }

    [MethodImpl(Apart)]
    internal static void lock_semaphore()
    {
        using var semaphore = new SemaphoreSlim(0);
        Later(() => semaphore.Release());
        semaphore.Wait();
    }

    [MethodImpl(Apart)]
    internal static void lock_wait_handle()
    {
        using var set = new AutoResetEvent(false);
        set.WaitOne(Milliseconds);
    }

    [MethodImpl(Apart)]
    internal static void lock_task() => Task.Delay(Milliseconds).Wait();

    [MethodImpl(Apart)]
    internal static void lock_result() => _ = Task.Delay(Milliseconds).ContinueWith(_ => 1).Result;

    [MethodImpl(Apart)]
    internal static void lock_join()
    {
        var thread = new Thread(() => Thread.Sleep(Milliseconds));
        thread.UnsafeStart();
        thread.Join();
    }

    [MethodImpl(Apart)]
    internal static void lock_collection()
    {
        using var queue = new BlockingCollection<int>();
        Later(() => queue.Add(1));
        queue.Take();
    }

    [MethodImpl(Apart)]
    internal static void lock_readers()
    {
        using var gate = new ReaderWriterLockSlim();
        using var held = new ManualResetEventSlim();
        var holder = new Thread(() =>
        {
            gate.EnterWriteLock();
            held.Set();
            Thread.Sleep(Milliseconds);
            gate.ExitWriteLock();
        });
        holder.UnsafeStart();
        held.Wait();
        gate.EnterReadLock();
        gate.ExitReadLock();
        holder.Join();
    }

    [MethodImpl(Apart)]
    internal static void io_receive()
    {
        var (ours, theirs) = Pair();
        using (ours)
        using (theirs)
        {
            Later(() => theirs.Send([1]));
            ours.Receive(new byte[1]);
        }
    }

    [MethodImpl(Apart)]
    internal static void io_accept()
    {
        using var listener = Listener();
        Later(() => Connect(listener).Dispose());
        listener.Accept().Dispose();
    }

    [MethodImpl(Apart)]
    internal static void io_poll()
    {
        var (ours, theirs) = Pair();
        using (ours)
        using (theirs)
        {
            ours.Poll(Milliseconds * 1_000, SelectMode.SelectRead);
        }
    }

    [MethodImpl(Apart)]
    internal static void io_read_pipe()
    {
        using var theirs = new AnonymousPipeServerStream();
        using var ours = new AnonymousPipeClientStream(theirs.GetClientHandleAsString());
        Later(() => theirs.WriteByte(1));
        ours.ReadByte();
    }

    [MethodImpl(Apart)]
    internal static void io_write_full_pipe()
    {
        using var ours = new AnonymousPipeServerStream(PipeDirection.Out);
        using var theirs = new AnonymousPipeClientStream(PipeDirection.In, ours.GetClientHandleAsString());
        var bytes = new byte[70_000];
        using var read = new ManualResetEventSlim();
        Later(() =>
        {
            theirs.ReadExactly(new byte[bytes.Length]);
            read.Set();
        });
        ours.Write(bytes);
        read.Wait();
    }

    [MethodImpl(Apart)]
    internal static void child_process()
    {
        using var process = Process.Start("sleep", (Milliseconds / 1e3).ToString("F3", System.Globalization.CultureInfo.InvariantCulture));
        process.WaitForExit();
    }

    private static Socket Listener()
    {
        var listener = new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp);
        listener.Bind(new IPEndPoint(IPAddress.Loopback, 0));
        listener.Listen();
        return listener;
    }

    private static Socket Connect(Socket listener)
    {
        var socket = new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp);
        socket.Connect(listener.LocalEndPoint!);
        return socket;
    }

    private static (Socket Ours, Socket Theirs) Pair()
    {
        using var listener = Listener();
        return (Connect(listener), listener.Accept());
    }
}
