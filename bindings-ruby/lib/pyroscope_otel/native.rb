# frozen_string_literal: true

# Loads the native part: that of this minor version of Ruby, as gems for a platform and `rake compile` have it, else the one
# that was compiled when the gem was installed.
begin
  require_relative "#{RUBY_VERSION[/\A\d+\.\d+/]}/pyroscope_otel"
rescue LoadError
  raise if File.exist?(File.join(__dir__, RUBY_VERSION[/\A\d+\.\d+/], "pyroscope_otel.so"))

  require_relative "pyroscope_otel"
end
