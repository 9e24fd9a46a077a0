// dotnet Exits.dll SHAPE SEED: a program that ends, stops or is stopped while the profiler is busy, in the shape that its first
// argument says. ../shapes.json says how each must end; ../exits.py runs them. The instants are random, by the seed.
using Pyroscope.Exits;

Shapes.Run(args[0], int.Parse(args[1], System.Globalization.CultureInfo.InvariantCulture));
