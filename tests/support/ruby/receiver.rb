# frozen_string_literal: true

require "socket"
require "zlib"
require_relative "profile"

# A server that takes Pyroscope's Push on the loopback, and keeps what it was sent.
class Receiver
  # A request: its path, its headers by lower-case name, the labels of its series, and the profile in it.
  Push = Struct.new(:path, :headers, :labels, :profile)

  attr_reader :pushes, :place

  # Listens while the block runs.
  def self.listen
    receiver = new
    yield receiver
  ensure
    receiver&.close
  end

  def initialize
    @pushes = Queue.new
    @server = TCPServer.new("127.0.0.1", 0)
    @place = "127.0.0.1:#{@server.addr[1]}"
    @thread = Thread.new { serve }
  end

  def close
    @server.close
    @thread.join
  end

  private

  def serve
    loop { answer(@server.accept) }
  rescue IOError
    nil # closed
  end

  def answer(socket)
    while (line = socket.gets)
      path = line.split[1]
      headers = {}
      until (line = socket.gets.chomp).empty?
        name, value = line.split(": ", 2)
        headers[name.downcase] = value
      end
      body = socket.read(headers.fetch("content-length", "0").to_i)
      @pushes << push(path, headers, body) if path.end_with?("/Push")
      socket.write("HTTP/1.1 #{path.end_with?("/Push") ? "200 OK" : "404 Not Found"}\r\ncontent-length: 0\r\n\r\n")
    end
  ensure
    socket.close
  end

  def push(path, headers, body)
    body = Zlib.gunzip(body) if headers["content-encoding"] == "gzip"
    series = Profile.fields(Profile.fields(body).fetch(1).first)
    labels = series.fetch(1).to_h { |pair| Profile.fields(pair).values_at(1, 2).map { |text| text.first.dup.force_encoding("UTF-8") } }
    Push.new(path, headers, labels, Profile.new(Profile.fields(series.fetch(2).first).fetch(1).first))
  end
end
