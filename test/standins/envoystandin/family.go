package envoystandin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// message is what parent and child tell each other.
type message struct {
	Ask     string `json:"ask"`
	Epoch   uint64 `json:"epoch"` // of the child
	Address string `json:"address,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// What a child asks for. Only the first two are answered.
const (
	askShutdownAdmin = "shutdown admin"
	askListener      = "pass listen socket"
	askDrain         = "drain listeners"
	askTerminate     = "terminate"
)

// Bounds of the question to a parent that does not take it.
const (
	retries    = 10
	retryPause = time.Second
)

// family is its way to its parent and to its child.
type family struct {
	options
	asChild, asParent *net.UnixConn
	mu                sync.Mutex
	parentEnded       bool
}

func (o options) socket(role string, epoch uint64) *net.UnixAddr {
	const atOnce = 3 // may run
	return &net.UnixAddr{Net: "unixgram", Name: fmt.Sprintf("%s_%s_%d", o.socketPath, role, o.baseID+epoch%atOnce)}
}

func bindSockets(o options) (*family, error) {
	mode, err := strconv.ParseUint(o.socketMode, 8, 32)
	if err != nil {
		return nil, err
	}
	f := &family{options: o, parentEnded: o.restartEpoch == 0}
	for role, to := range map[string]**net.UnixConn{"child": &f.asChild, "parent": &f.asParent} {
		address := o.socket(role, o.restartEpoch)
		if address.Name[0] != '@' {
			_ = os.Remove(address.Name)
		}
		if *to, err = net.ListenUnixgram("unixgram", address); err != nil {
			return nil, fmt.Errorf("unable to bind domain socket with base_id=%d, id=%d (see --base-id option): %w", o.baseID, o.restartEpoch, err)
		}
		if address.Name[0] != '@' {
			if err := os.Chmod(address.Name, os.FileMode(mode)); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// ask sends a message to the parent. One whose socket is there and does not take it is tried again.
func (f *family) ask(m message) error {
	m.Epoch = f.restartEpoch
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	for range retries {
		_, err = f.asChild.WriteToUnix(text, f.socket("parent", f.restartEpoch-1))
		if !errors.Is(err, unix.ECONNREFUSED) {
			break
		}
		<-time.After(retryPause)
	}
	if err != nil {
		return fmt.Errorf("hot restart sendmsg() failed: %w", err)
	}
	return nil
}

// answered waits for the parent's answer, for ever if it ends meanwhile, and returns the listener that comes with it, or -1.
func (f *family) answered() (fd int, err error) {
	var m message
	text, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, nRights, _, _, err := f.asChild.ReadMsgUnix(text, rights)
	if err == nil {
		err = json.Unmarshal(text[:n], &m)
	}
	if err != nil || m.Refused != "" {
		return -1, errors.Join(err, errors.New("the parent refuses: "+m.Refused))
	}
	if nRights == 0 {
		return -1, nil
	}
	control, err := unix.ParseSocketControlMessage(rights[:nRights])
	if err != nil {
		return -1, err
	}
	fds, err := unix.ParseUnixRights(&control[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// closeParentAdmin has the parent close its admin interface.
func (f *family) closeParentAdmin() error {
	if f.restartEpoch == 0 {
		return nil
	}
	if err := f.ask(message{Ask: askShutdownAdmin}); err != nil {
		return err
	}
	_, err := f.answered()
	return err
}

// takeListener returns the parent's listener of an address, or nil.
func (f *family) takeListener(address string) (*net.TCPListener, error) {
	if f.restartEpoch == 0 {
		return nil, nil
	}
	if err := f.ask(message{Ask: askListener, Address: address}); err != nil {
		return nil, err
	}
	fd, err := f.answered()
	if err != nil || fd < 0 {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), address)
	defer file.Close() //nolint:errcheck // the listener has a copy
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

func (f *family) drainParent() error {
	if f.restartEpoch == 0 {
		return nil
	}
	return f.ask(message{Ask: askDrain})
}

// endParent ends the parent, once.
func (f *family) endParent() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.parentEnded {
		return
	}
	f.parentEnded = true
	text, err := json.Marshal(message{Ask: askTerminate, Epoch: f.restartEpoch})
	if err == nil {
		_, _ = f.asChild.WriteToUnix(text, f.socket("parent", f.restartEpoch-1))
	}
}

// answer does what children ask for, until the socket is closed.
func (f *family) answer(p *proxy, end func()) {
	text := make([]byte, 4096)
	for {
		n, err := f.asParent.Read(text)
		if err != nil {
			return
		}
		var m message
		if err := json.Unmarshal(text[:n], &m); err != nil {
			continue
		}
		reply, rights := f.reply(p, m, end)
		if m.Ask != askShutdownAdmin && m.Ask != askListener {
			continue
		}
		if out, err := json.Marshal(reply); err == nil {
			_, _, _ = f.asParent.WriteMsgUnix(out, rights, f.socket("child", m.Epoch))
		}
	}
}

func (f *family) reply(p *proxy, m message, end func()) (reply message, rights []byte) {
	reply = message{Ask: m.Ask, Epoch: m.Epoch}
	if m.Epoch != f.restartEpoch+1 {
		reply.Refused = fmt.Sprintf("epoch %d does not follow %d", m.Epoch, f.restartEpoch)
		return reply, nil
	}
	switch m.Ask {
	case askShutdownAdmin:
		_ = p.admin.Close()
		f.endParent()
	case askListener:
		rights = p.rights(m.Address)
	case askDrain:
		p.drain()
	case askTerminate:
		end()
	}
	return reply, rights
}

// rights returns the control message that passes a listener, or nil.
func (p *proxy) rights(address string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.listeners[address]
	if l == nil {
		return nil
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return nil
	}
	var out []byte
	if err := raw.Control(func(fd uintptr) { out = unix.UnixRights(int(fd)) }); err != nil {
		return nil
	}
	return out
}

// serveAdmin opens the admin interface.
func serveAdmin(path string, p *proxy) (*http.Server, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.live {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	return server, nil
}
