# frozen_string_literal: true

require_relative "profile"

# A server that takes Pyroscope's Push on the loopback, and keeps what it was sent: `fault-server --receive`, in a process of its own.
class Receiver
  # A request: its path, its headers by lower-case name, the labels of its series, and the profile in it.
  Push = Struct.new(:path, :headers, :labels, :profile)

  attr_reader :place

  # Listens while the block runs.
  def self.listen
    receiver = new
    yield receiver
  ensure
    receiver&.close
  end

  def initialize
    @server = IO.popen([Profile::SERVER, "--receive"], "r+", external_encoding: Encoding::UTF_8)
    @place = "127.0.0.1:#{JSON.parse(@server.gets)["port"]}"
  end

  # What has come since this was asked for the last time.
  def pushes
    @server.puts("0")
    JSON.parse(@server.gets).map do |push|
      raise push["error"] if push.key?("error")

      Push.new(push["path"], push["headers"].to_h, push["labels"], Profile.new(push["profile"]))
    end
  end

  def close = @server.close
end
