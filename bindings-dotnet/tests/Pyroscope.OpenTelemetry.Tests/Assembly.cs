// There is one profiler a process, and one mirror of what is current.
[assembly: CollectionBehavior(DisableTestParallelization = true)]
