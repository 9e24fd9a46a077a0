using Pyroscope.Context;

namespace Pyroscope;

/// <summary>
/// Runs code whose samples carry labels, wherever it goes on: over <c>await</c>, in tasks and threads that it starts. The
/// labels replace those in force; to add some, build upon a set. About 100 ns a call.
/// </summary>
public static class LabelsWrapper
{
    /// <summary>Runs <paramref name="action"/> with labels.</summary>
    /// <param name="labels">The labels.</param>
    /// <param name="action">What to run. Its exceptions pass through.</param>
    public static void Do(LabelSet labels, Action action)
    {
        ArgumentNullException.ThrowIfNull(action);
        using (Push(labels))
        {
            action();
        }
    }

    /// <summary>Runs <paramref name="action"/> with labels.</summary>
    /// <typeparam name="T">Of its argument.</typeparam>
    /// <param name="labels">The labels.</param>
    /// <param name="action">What to run.</param>
    /// <param name="state">Its argument.</param>
    public static void Do<T>(LabelSet labels, Action<T> action, T state)
    {
        ArgumentNullException.ThrowIfNull(action);
        using (Push(labels))
        {
            action(state);
        }
    }

    /// <summary>Runs <paramref name="action"/> with labels until its task is done.</summary>
    /// <param name="labels">The labels.</param>
    /// <param name="action">What to run.</param>
    /// <returns>A task that ends as that of <paramref name="action"/> does.</returns>
    public static async Task Do(LabelSet labels, Func<Task> action)
    {
        ArgumentNullException.ThrowIfNull(action);
        using (Push(labels))
        {
            await action().ConfigureAwait(false);
        }
    }

    /// <summary>Runs <paramref name="action"/> with labels until its task is done.</summary>
    /// <typeparam name="TResult">Of its result.</typeparam>
    /// <param name="labels">The labels.</param>
    /// <param name="action">What to run.</param>
    /// <returns>A task with its result.</returns>
    public static async Task<TResult> Do<TResult>(LabelSet labels, Func<Task<TResult>> action)
    {
        ArgumentNullException.ThrowIfNull(action);
        using (Push(labels))
        {
            return await action().ConfigureAwait(false);
        }
    }

    /// <summary>Runs <paramref name="action"/> with labels until its task is done.</summary>
    /// <typeparam name="T">Of its argument.</typeparam>
    /// <param name="labels">The labels.</param>
    /// <param name="action">What to run.</param>
    /// <param name="state">Its argument.</param>
    /// <returns>A task that ends as that of <paramref name="action"/> does.</returns>
    public static Task Do<T>(LabelSet labels, Func<T, Task> action, T state) => Do(labels, () => action(state));

    /// <summary>Runs <paramref name="action"/> with labels until its task is done.</summary>
    /// <typeparam name="T">Of its argument.</typeparam>
    /// <typeparam name="TResult">Of its result.</typeparam>
    /// <param name="labels">The labels.</param>
    /// <param name="action">What to run.</param>
    /// <param name="state">Its argument.</param>
    /// <returns>A task with its result.</returns>
    public static Task<TResult> Do<T, TResult>(LabelSet labels, Func<T, Task<TResult>> action, T state) =>
        Do(labels, () => action(state));

    /// <summary>Puts labels in force until the scope is disposed, where the work does not fit into one function.</summary>
    /// <param name="labels">The labels.</param>
    /// <returns>The scope. Dispose it in the flow that called this.</returns>
    public static LabelScope Push(LabelSet labels)
    {
        ArgumentNullException.ThrowIfNull(labels);
        var before = LabelFlow.Current;
        LabelFlow.Activate(labels);
        return new LabelScope(before);
    }
}

/// <summary>Labels that are in force until this is disposed.</summary>
public readonly struct LabelScope : IDisposable
{
    private readonly LabelSet? before;

    internal LabelScope(LabelSet? before) => this.before = before;

    /// <summary>Puts the labels in force again that were before.</summary>
    public void Dispose() => LabelFlow.Activate(before);
}
