# frozen_string_literal: true

require "fiddle"
require "fileutils"
require "rbconfig"

# Libraries that are opened, wait and are closed: copies of one, each of which is a module of its own.
module WaitsModules
  SOURCE = <<~C
    #include <poll.h>
    #include <semaphore.h>
    #include <time.h>

    int sleeps(int microseconds)
    {
        struct timespec time = {0, microseconds * 1000};
        return nanosleep(&time, 0);
    }

    int polls(int descriptor)
    {
        struct pollfd asked = {descriptor, POLLIN, 0};
        return poll(&asked, 1, 1);
    }

    int locks(int microseconds)
    {
        sem_t semaphore;
        struct timespec time;
        sem_init(&semaphore, 0, 0);
        clock_gettime(CLOCK_REALTIME, &time);
        time.tv_nsec += microseconds * 1000;
        if (time.tv_nsec >= 1000000000) time.tv_nsec -= 1000000000, time.tv_sec++;
        return sem_timedwait(&semaphore, &time);
    }

    int calls(int (*function)(int), int number) { return function(number); }
  C
  COPIES = 6
  INT = Fiddle::TYPE_INT

  # Whether there is a compiler.
  def self.compile(folder)
    source = File.join(folder, "waits.c")
    @paths = Array.new(COPIES) { |number| File.join(folder, "waits#{number}.so") }
    File.write(source, SOURCE)
    compiled = system(RbConfig::CONFIG["CC"] || "cc", "-shared", "-fPIC", "-O1", "-o", @paths[0], source, "-pthread", err: File::NULL)
    @paths.drop(1).each { |path| FileUtils.cp(@paths[0], path) } if compiled
    compiled
  end

  # A library that is open while the block runs, which is given its functions by name.
  def self.opened
    library = Fiddle.dlopen(@paths.sample)
    yield ->(name, *types) { Fiddle::Function.new(library[name], types, INT) }
  ensure
    library&.close
  end

  # The block as a C function of a number.
  def self.callback(&) = Fiddle::Closure::BlockCaller.new(INT, [INT], &)
end
