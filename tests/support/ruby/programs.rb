# frozen_string_literal: true

# What the environment of whoever runs the tests says is not for them.
ENV.delete_if { |name, _value| name.start_with?("PYROSCOPE_", "OTEL_") }

# The environment of programs that tests run. They find the gems without Bundler, which would use as much CPU time as all
# else at their start.
PROGRAMS = { "BUNDLER_SETUP" => nil, "RUBYOPT" => nil, "GEM_HOME" => Gem.dir, "GEM_PATH" => Gem.path.join(":") }.freeze
