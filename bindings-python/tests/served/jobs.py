"""A program that has its work done by other processes: jobs.py METHOD KIND. Prints who did it."""

import concurrent.futures
import multiprocessing
import sys

import counted

tracer = counted.configure()


def job(_number):
    with tracer.start_as_current_span("job"):
        return counted.work("worker", 0.05)


def main(method, kind):
    context = multiprocessing.get_context(method)
    # Some Pythons load the main module in the server that forks, others in each child: the latter, for all.
    context.set_forkserver_preload([])
    if kind == "Process":
        answers = context.SimpleQueue()
        processes = [context.Process(target=tell, args=(answers,)) for _ in range(2)]
        for process in processes:
            process.start()
        pids = [answers.get() for _ in processes]
        for process in processes:
            process.join()
    elif kind == "Pool":
        pool = context.Pool(2)
        pids = pool.map(job, range(10), chunksize=1)
        pool.close()
        pool.join()
    else:
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            pids = list(pool.map(job, range(10)))
    print(*set(pids))


def tell(answers):
    answers.put(job(0))


if __name__ == "__main__":
    main(*sys.argv[1:])
