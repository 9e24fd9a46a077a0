using System.Diagnostics;
using System.Text.Json;

namespace Orders;

/// <summary>What the service's spans do; each has one thing that it does most.</summary>
internal static class Work
{
    internal static readonly ActivitySource Source = new("orders");

    private static readonly object Shelf = new();
    private static readonly int[] Reserved = new int[3];

    /// <summary>Computes: most CPU.</summary>
    internal static string Price(int order)
    {
        using var span = Source.StartActivity("price order");
        return Discount(order).ToString();
    }

    /// <summary>Waits: all items lie on one shelf.</summary>
    internal static async Task<int> Stock(int item)
    {
        using var span = Source.StartActivity("reserve stock");
        await Task.Yield();
        lock (Shelf)
        {
            Thread.Sleep(2);
            return ++Reserved[item];
        }
    }

    /// <summary>Throws for one order in four.</summary>
    internal static async Task Validate(int order)
    {
        using var span = Source.StartActivity("validate order");
        await Task.Yield();
        try
        {
            if (order % 4 == 0)
            {
                throw new FormatException($"order {order} has no address");
            }
        }
        catch (FormatException error)
        {
            span?.AddException(error);
        }
    }

    /// <summary>Allocates: most bytes.</summary>
    internal static async Task<string> Render(int order, string price, string[] stock)
    {
        using var span = Source.StartActivity("render order");
        await Task.Yield();
        var lines = Enumerable.Range(0, 400)
            .Select(number => new { number, text = $"position {number} of order {order}", price, stock = string.Join(',', stock) })
            .OrderByDescending(line => line.text, StringComparer.Ordinal)
            .ToList();
        return JsonSerializer.Serialize(lines);
    }

    private static long Discount(int order)
    {
        long sum = order;
        for (var step = 0; step < 4_000_000; step++)
        {
            sum = (sum * 31 + step) % 1_000_003;
        }

        return sum;
    }
}
