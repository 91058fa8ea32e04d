package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// serve answers on every given port until ctx ends. Without an address it serves both families.
func serve(ctx context.Context, args []string, progress io.Writer) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(progress)
	httpPorts := flags.String("http", "8080", "comma-separated ports that answer HTTP requests")
	tcpPorts := flags.String("tcp", "", "comma-separated ports that answer as soon as a connection is there, then echo")
	bind := flags.String("bind", "", "the only address to listen on (default: all, of both families)")
	var s server
	flags.StringVar(&s.banner, "banner", hostname(), "how the server calls itself")
	ask := flags.String("ask", "", "comma-separated URLs that are asked for each HTTP request, by a new connection each")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s.ask = split(*ask)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	for _, kind := range []struct {
		ports  string
		handle func(context.Context, net.Listener) error
	}{{*httpPorts, s.serveHTTP}, {*tcpPorts, s.serveTCP}} {
		for _, port := range split(kind.ports) {
			listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(*bind, port))
			if err != nil {
				return fmt.Errorf("listen: %w", err)
			}
			fmt.Fprintf(progress, "listening on %s\n", listener.Addr())
			go func() {
				if err := kind.handle(ctx, listener); err != nil {
					select {
					case failed <- err:
					default: // one reason to end is enough
					}
				}
			}()
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// server is a server's account of itself, and the servers that it asks.
type server struct {
	banner string
	ask    []string
}

// serveHTTP answers every path and method alike.
func (s server) serveHTTP(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		Handler:           http.HandlerFunc(s.answerHTTP),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// answerHTTP fails if a server that it asks does: the client learns of it.
func (s server) answerHTTP(w http.ResponseWriter, r *http.Request) {
	conn, ok := r.Context().Value(connKey{}).(net.Conn)
	if !ok {
		http.Error(w, "no connection", http.StatusInternalServerError)
		return
	}
	a := answerFor(s.banner, conn.LocalAddr(), conn.RemoteAddr())
	a.Path, a.Host, a.ClientCert = r.URL.Path, r.Host, r.Header.Get("X-Forwarded-Client-Cert")
	for _, url := range s.ask {
		body, err := client{"tcp", 5 * time.Second}.get(r.Context(), url)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		asked, err := readAnswer(bytes.NewReader(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		a.Asked = append(a.Asked, asked)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = writeAnswer(w, a) // the client has gone
}

// connKey finds a request's connection in its context.
type connKey struct{}

// serveTCP speaks first, as mail servers and databases do: proxies that wait for the client's first bytes fail here.
func (s server) serveTCP(ctx context.Context, l net.Listener) error {
	// Accept has no context: closing the listener is how it ends.
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			defer conn.Close()
			if writeAnswer(conn, answerFor(s.banner, conn.LocalAddr(), conn.RemoteAddr())) == nil {
				_, _ = io.Copy(conn, conn) // until the client ends it, in whatever way
			}
		}()
	}
}

// split takes an empty list for none.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// hostname is the pod's name inside a pod.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}
