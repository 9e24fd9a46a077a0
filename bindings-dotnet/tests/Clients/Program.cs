// dotnet Clients.dll SOURCE ARGUMENT: runs what the source in tests/faults or tests/hazards says.
using Pyroscope.Clients;

var (source, argument) = (args[0], args[1]);
switch (Path.GetFileName(Path.GetDirectoryName(Path.GetDirectoryName(source))))
{
    case "faults":
        Faults.Run(double.Parse(argument, System.Globalization.CultureInfo.InvariantCulture));
        break;
    case "hazards":
        Hazards.Run(argument);
        break;
    default:
        throw new ArgumentException($"source: {source} is not allowed; allowed: a file of tests/faults/clients or tests/hazards/clients");
}
