# frozen_string_literal: true

# The compiled part. A gem for a platform holds one for each minor version of Ruby, in a folder of its name; one that was
# compiled on this machine lies beside those folders.
begin
  require_relative "../pyroscope_otel/#{RUBY_VERSION[/\A\d+\.\d+/]}/pyroscope_otel"
rescue LoadError
  require_relative "../pyroscope_otel/pyroscope_otel"
end
