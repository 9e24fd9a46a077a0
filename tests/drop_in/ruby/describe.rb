# frozen_string_literal: true

# Prints the public surface of the gems that are loaded, as JSON: run by surface_test.rb with either's load path.
require "json"
require "opentelemetry/sdk"
require "pyroscope"
require "pyroscope/otel"

def parameters(method)
  method.parameters.map { |kind, _name| kind }
end

config = Pyroscope::Config.new
processor = Pyroscope::Otel::SpanProcessor.new("app.cpu", "http://localhost:4040")
Pyroscope::Otel::SpanProcessor.prepend(Module.new) # so that what is listed is the class's own
puts JSON.generate(
  options: Pyroscope::Config.instance_methods(false).grep(/=\z/).to_h { |name| [name[..-2], config.public_send(name[..-2])] },
  module: Pyroscope.singleton_methods(false).to_h { |name| [name, parameters(Pyroscope.method(name))] },
  processor: Pyroscope::Otel::SpanProcessor.instance_methods(false).to_h { |name| [name, parameters(processor.method(name))] },
  accessors: %i[app_name root_span_only add_span_name add_url].to_h { |name| [name, processor.public_send(name)] },
  endpoint: processor.pyroscope_endpoint.to_s,
  new: parameters(Pyroscope::Otel::SpanProcessor.instance_method(:initialize))
)
