package inspectserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/printable"
)

// Bounds of logs and commands of proxies.
const (
	// proxiesAtOnce is how many are served in parallel.
	proxiesAtOnce = 4
	// logTime is how long one log is followed.
	logTime = time.Hour
	// ExecTime is how long a command may take.
	ExecTime = 30 * time.Second
	// writeTime is how long a reader may take for what it was sent.
	writeTime = 10 * time.Second
)

// ProxyAccess reaches the proxies that the agent runs for single pods of its node.
type ProxyAccess interface {
	Log(ctx context.Context, namespace, pod string, o inspect.LogOptions, w io.Writer) error
	Exec(ctx context.Context, namespace, pod string, command []string, out, errOut io.Writer) (code int, err error)
}

// proxyHandler answers requests for logs and commands of proxies, for callers with the right to the pod's own.
type proxyHandler struct {
	knows func(ctx context.Context, namespace, name string) error
	to    ProxyAccess
	line  chan struct{}
}

// newProxyHandler returns nil if the agent runs no proxies.
func newProxyHandler(knows func(ctx context.Context, namespace, name string) error, to ProxyAccess) *proxyHandler {
	if to == nil {
		return nil
	}
	return &proxyHandler{knows: knows, to: to, line: make(chan struct{}, proxiesAtOnce)}
}

// serve returns a handler of requests whose caller has a right.
func (p *proxyHandler) serve(h inspectHandler, to right, answer func(w http.ResponseWriter, r *http.Request, namespace, name string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		namespace, name, err := h.admit(ctx, r, to)
		if err == nil {
			err = p.knows(ctx, namespace, name)
		}
		cancel()
		if err == nil {
			err = p.inLine(func() error { return answer(w, r, namespace, name) })
		}
		if err != nil {
			refuse(w, err)
		}
	}
}

func (p *proxyHandler) inLine(f func() error) error {
	select {
	case p.line <- struct{}{}:
		defer func() { <-p.line }()
		return f()
	default:
		return &inspect.Refusal{Code: http.StatusServiceUnavailable, Message: "the agent serves as many logs and commands as it may: try again later"}
	}
}

// log streams the log. Once something was written, an error is a trailer.
func (p *proxyHandler) log(w http.ResponseWriter, r *http.Request, namespace, name string) error {
	options, err := inspect.LogOptionsOf(r.URL.Query())
	if err != nil {
		return &inspect.Refusal{Code: http.StatusBadRequest, Message: err.Error()}
	}
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Time{}); err != nil { // it would end the request's context
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), logTime)
	defer cancel()
	w.Header().Set("Trailer", inspect.ErrorTrailer)
	out := &flushing{w: w, control: control}
	err = p.to.Log(ctx, namespace, name, options, out)
	if err := control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil { // the last write may be long ago
		return err
	}
	if err != nil && !out.begun {
		w.Header().Del("Trailer")
		return &inspect.Refusal{Code: http.StatusNotFound, Message: err.Error()}
	}
	if err != nil {
		w.Header().Set(inspect.ErrorTrailer, printable.Line(err.Error()))
	}
	return nil
}

// flushing sends each write at once, and gives the reader a while for it.
type flushing struct {
	w       io.Writer
	control *http.ResponseController
	begun   bool
}

// Write writes and flushes.
func (f *flushing) Write(text []byte) (int, error) {
	f.begun = true
	if err := f.control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return 0, err
	}
	n, err := f.w.Write(text)
	return n, errors.Join(err, f.control.Flush())
}

// exec runs a command without input, and answers once it has ended.
func (p *proxyHandler) exec(w http.ResponseWriter, r *http.Request, namespace, name string) error {
	var command inspect.Command
	if err := json.NewDecoder(io.LimitReader(r.Body, inspect.MaxCommand)).Decode(&command); err != nil || len(command.Args) == 0 {
		return &inspect.Refusal{Code: http.StatusBadRequest, Message: "want a command"}
	}
	control := http.NewResponseController(w)
	if err := errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Now().Add(ExecTime+writeTime))); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), ExecTime)
	defer cancel()
	var out, errOut shortened
	code, err := p.to.Exec(ctx, namespace, name, command.Args, &out, &errOut)
	if err != nil {
		return &inspect.Refusal{Code: http.StatusNotFound, Message: err.Error()}
	}
	writeJSON(w, http.StatusOK, inspect.Output{Out: out.text, Err: errOut.text, Code: code, Cut: out.cut || errOut.cut})
	return nil
}

// shortened keeps the first MaxOutput bytes.
type shortened struct {
	text []byte
	cut  bool
}

// Write never fails: the rest is left out.
func (s *shortened) Write(text []byte) (int, error) {
	kept := text[:min(len(text), inspect.MaxOutput-len(s.text))]
	s.text, s.cut = append(s.text, kept...), s.cut || len(kept) < len(text)
	return len(text), nil
}
