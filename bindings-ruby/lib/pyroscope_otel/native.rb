# frozen_string_literal: true

# Loads the native part: that of this minor version of Ruby, as gems for a platform and `rake compile` have it, else the one
# that was compiled when the gem was installed. Where neither is there, or loads, the program goes on without profiles.
begin
  if File.directory?(File.join(__dir__, RUBY_VERSION[/\A\d+\.\d+/]))
    require_relative "#{RUBY_VERSION[/\A\d+\.\d+/]}/pyroscope_otel"
  else
    require "pyroscope_otel/pyroscope_otel"
  end
rescue LoadError => error
  require_relative "absent"
  # Files that are not there have a path; those that are, and do not load, a reason.
  Pyroscope::Native.explain(error.path ? nil : error.message)
end
