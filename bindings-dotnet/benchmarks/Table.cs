using System.Text.Json;

namespace Pyroscope.Benchmarks;

/// <summary>All cells, a line for what was measured and a column for each runtime.</summary>
internal static class Table
{
    internal static void Print(string[] folders)
    {
        // A folder is named after its runtime.
        var columns = folders.ToDictionary(folder => Path.GetFileName(folder), folder => Row.All.Keys
            .Select(name => Path.Combine(folder, $"{name}.json")).Where(File.Exists)
            .SelectMany(file => JsonSerializer.Deserialize<Cell[]>(File.ReadAllText(file))!).ToDictionary(cell => cell.What));
        var lines = new List<string[]> { new[] { "what", "bound" }.Concat(columns.Keys).Append("").ToArray() };
        foreach (var what in columns.Values.SelectMany(cells => cells.Keys).Distinct())
        {
            var cells = columns.Values.Select(column => column.GetValueOrDefault(what)).ToArray();
            var bound = cells.First(cell => cell is not null)!.Bound;
            var verdict = cells.Any(cell => cell?.Passed == false) ? "MISS" : cells.Any(cell => cell?.Passed == true) ? "pass" : "";
            lines.Add([what, bound, .. cells.Select(cell => cell?.Text ?? "-"), verdict]);
        }

        var widths = Enumerable.Range(0, lines[0].Length).Select(column => lines.Max(line => line[column].Length)).ToArray();
        foreach (var line in lines)
        {
            Console.WriteLine(string.Join("  ", line.Zip(widths, (text, width) => text.PadRight(width))).TrimEnd());
        }
    }
}
