# frozen_string_literal: true

# Takes all of Ruby's places for postponed jobs, before the native part is loaded.
require "fiddle"

JOBS_CALLED = []
preregister = Fiddle::Function.new(Fiddle::Handle::DEFAULT["rb_postponed_job_preregister"],
                                   [Fiddle::TYPE_INT, Fiddle::TYPE_VOIDP, Fiddle::TYPE_VOIDP], Fiddle::TYPE_UINT)
JOBS = Array.new(64) do |number|
  Fiddle::Closure::BlockCaller.new(Fiddle::TYPE_VOID, [Fiddle::TYPE_VOIDP]) { JOBS_CALLED << number }.tap { |job| preregister.call(0, job.to_i, nil) }
end
