using Pyroscope.Benchmarks;

// program measure ROW FOLDER [--quick] [--samples N]   one measurement, in this process; its cells go to FOLDER/ROW.json
// program table FOLDER...                              what they left, one column a folder
switch (arguments: args, args.Length)
{
    case (["measure", var name, var folder, .. var options], _):
        Row.Measure(name, folder, new Options(options));
        break;
    case (["table", .. var folders], _):
        Table.Print(folders);
        break;
    case (["started", ..], _):
        ProcessStart.Child(args[1] == "on");
        break;
    case (["closure", var program, var seconds, var flows], _):
        Closure.Child(program, seconds, flows);
        break;
    case (["web", var backend], _):
        WebService.Run(backend);
        break;
    default:
        throw new ArgumentException($"{string.Join(' ', args)} is not allowed; allowed: measure ROW FOLDER, table FOLDER...");
}
