// Package envoystandin is a program that behaves like Envoy as far as its hot restart goes, for tests on machines without an Envoy. Its
// rules are those of Envoy's source (source/server/hot_restart_impl.cc, hot_restarting_{base,child,parent}.cc, server.cc); only the
// messages' encoding differs:
//
//   - The first of a line has restart epoch 0 and makes the shared memory. Each other one opens it, and refuses another version, and a
//     line in which one still starts, or has ended while it started.
//   - It binds two datagram sockets, for its child and for its parent. Their names are made of the socket path, the role, ten times the base
//     ID, and the epoch modulo 3.
//   - It has its parent close the admin interface, which also ends the parent's own parent, and asks it for each listener.
//   - Once it serves, it tells the parent to drain, and ends it after the parent shutdown time.
//   - Whoever ends it by SIGTERM ends its parent, too.
//
// Its clients send lines, and get each answered with its epoch. One that drains adds "close" to the answer, and then closes the connection.
package envoystandin

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
	"unsafe"
)

// Environment variables with which a test makes it misbehave.
const (
	EnvVersion = "STANDIN_VERSION" // the answer to --hot-restart-version
	EnvFault   = "STANDIN_FAULT"   // one of the faults
)

// Faults.
const (
	FaultCrash      = "crash"       // it ends while it starts, after it has taken the listeners
	FaultHang       = "hang"        // it never serves
	FaultCrashAfter = "crash-after" // it ends soon after it has taken over
)

// startTime is how long it takes to be ready.
const startTime = 150 * time.Millisecond

// options are its arguments.
type options struct {
	config                 string
	restartEpoch, baseID   uint64
	socketPath, socketMode string
	drainSeconds           uint64
	parentShutdown         time.Duration
	version                bool
}

// Config is its configuration file.
type Config struct {
	Admin  string   `json:"admin"`  // the path of the admin interface's unix socket
	Listen []string `json:"listen"` // addresses
}

func parse(args []string) (o options, err error) {
	o.parentShutdown = 15 * time.Minute
	f := flag.NewFlagSet("envoy", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.config, "c", "", "")
	f.Uint64Var(&o.restartEpoch, "restart-epoch", 0, "")
	f.Uint64Var(&o.baseID, "base-id", 0, "")
	f.StringVar(&o.socketPath, "socket-path", "@envoy_domain_socket", "")
	f.StringVar(&o.socketMode, "socket-mode", "600", "")
	f.Uint64Var(&o.drainSeconds, "drain-time-s", 600, "")
	f.Func("parent-shutdown-time-s", "", func(text string) (err error) {
		o.parentShutdown, err = time.ParseDuration(text + "s")
		return err
	})
	f.BoolVar(&o.version, "hot-restart-version", false, "")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("argument %q is not known", f.Arg(0))
	}
	o.baseID *= 10
	return o, nil
}

// Main runs it until ctx ends, which is its SIGTERM, and returns its exit code.
func Main(ctx context.Context, args []string, out io.Writer) int {
	o, err := parse(args)
	if err != nil {
		fmt.Fprintln(out, "error:", err)
		return 1
	}
	if o.version {
		fmt.Fprint(out, version())
		return 0
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(out, "error:", err)
		return 1
	}
	return 0
}

// version is made of the protocol's version and the size of the memory, unless the environment says something else.
func version() string {
	if v := os.Getenv(EnvVersion); v != "" {
		return v
	}
	return fmt.Sprintf("%d.%d", protocolVersion, unsafe.Sizeof(SharedMemory{}))
}

// errCrash is a fault.
var errCrash = errors.New("crashed, as the test asked for")

func run(ctx context.Context, o options) error {
	text, err := os.ReadFile(o.config)
	if err != nil {
		return err
	}
	var config Config
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	family, err := bindSockets(o)
	if err != nil {
		return err
	}
	memory, err := attach(o)
	if err != nil {
		return err
	}
	if err := family.closeParentAdmin(); err != nil {
		return err
	}
	p := &proxy{epoch: o.restartEpoch, drained: make(chan struct{})}
	if err := p.listen(config.Listen, family); err != nil {
		return err
	}
	if p.admin, err = serveAdmin(config.Admin, p); err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	if err := o.start(ctx); err == nil {
		go family.answer(p, end)
		p.serve()
		if err := errors.Join(family.drainParent(), memory.initialized()); err != nil {
			return err
		}
		if os.Getenv(EnvFault) == FaultCrashAfter {
			return errCrash
		}
		shutdown := time.AfterFunc(o.parentShutdown, family.endParent)
		defer shutdown.Stop()
	} else if ctx.Err() == nil {
		return err
	}
	<-ctx.Done()
	family.endParent()
	return nil
}

// start takes the time that it needs to be ready. The error is that of a fault, or ctx's.
func (o options) start(ctx context.Context) error {
	needs := time.NewTimer(startTime)
	defer needs.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-needs.C:
	}
	switch os.Getenv(EnvFault) {
	case FaultCrash:
		return errCrash
	case FaultHang:
		<-ctx.Done()
	}
	return ctx.Err()
}

// proxy is its listeners and connections.
type proxy struct {
	epoch     uint64
	mu        sync.Mutex
	listeners map[string]*net.TCPListener
	live      bool
	once      sync.Once
	drained   chan struct{}
	admin     io.Closer
}

// listen takes the listeners from the parent, and opens those that it does not have.
func (p *proxy) listen(addresses []string, f *family) error {
	p.listeners = map[string]*net.TCPListener{}
	for _, address := range addresses {
		l, err := f.takeListener(address)
		if err == nil && l == nil {
			var opened net.Listener
			if opened, err = net.Listen("tcp", address); err == nil {
				l = opened.(*net.TCPListener)
			}
		}
		if err != nil {
			return err
		}
		p.listeners[address] = l
	}
	return nil
}

// serve takes connections.
func (p *proxy) serve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live = true
	for _, l := range p.listeners {
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go p.talk(conn)
			}
		}()
	}
}

// talk answers each line of a client.
func (p *proxy) talk(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // everything was answered
	buffer := make([]byte, 64)
	for {
		if n, err := conn.Read(buffer); err != nil || n == 0 {
			return
		}
		answer, last := strconv.FormatUint(p.epoch, 10), p.draining()
		if last {
			answer += " close"
		}
		if _, err := fmt.Fprintln(conn, answer); err != nil || last {
			return
		}
	}
}

func (p *proxy) draining() bool {
	select {
	case <-p.drained:
		return true
	default:
		return false
	}
}

// drain takes no more connections. Those that wait in a listener are the child's, which has the same one.
func (p *proxy) drain() {
	p.once.Do(func() {
		close(p.drained)
		p.mu.Lock()
		defer p.mu.Unlock()
		for address, l := range p.listeners {
			_ = l.Close()
			delete(p.listeners, address)
		}
	})
}
