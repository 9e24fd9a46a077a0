// dotnet Pyroscope.OpenTelemetry.Waits.dll SECONDS [FOLDER [SEED]]: runs itself as a program that waits in each way there is, every wait a
// sample, and judges its profiles as they come into FOLDER. Prints what was seen, a row of ci/soak, and below it what was wrong.
using System.Globalization;
using Waits;

if (args[0] == "play") return Play.Run(double.Parse(args[1], CultureInfo.InvariantCulture), args[2], int.Parse(args[3], CultureInfo.InvariantCulture));
var seed = args.Length > 2 ? args[2] : "1";
if (args.Length > 1) return Runner.Run(args[0], args[1], seed);
var folder = Directory.CreateTempSubdirectory("waits-").FullName;
try
{
    return Runner.Run(args[0], folder, seed);
}
finally
{
    Directory.Delete(folder, true);
}
