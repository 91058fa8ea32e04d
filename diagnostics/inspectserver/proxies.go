package inspectserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// inLine answers about proxies of this node's pods, proxiesAtOnce in parallel.
func (h handler) inLine(answer answer) answer {
	return func(ctx context.Context, w http.ResponseWriter, r *http.Request, namespace, name string) error {
		if _, _, err := h.look.find(ctx, namespace, name); err != nil {
			return err
		}
		select {
		case h.line <- struct{}{}:
			defer func() { <-h.line }()
			return answer(ctx, w, r, namespace, name)
		default:
			return &inspect.Refusal{Code: http.StatusServiceUnavailable, Message: "the agent serves as many logs and commands as it may: try again later"}
		}
	}
}

// log streams the log. Once something was written, an error is a trailer.
func (h handler) log(_ context.Context, w http.ResponseWriter, r *http.Request, namespace, name string) error {
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
	err = h.proxies.Log(ctx, namespace, name, options, out)                     //nolint:contextcheck // it lasts longer than the other questions
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
func (h handler) exec(_ context.Context, w http.ResponseWriter, r *http.Request, namespace, name string) error {
	var command inspect.Command
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, inspect.MaxCommand)).Decode(&command)
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return &inspect.Refusal{Code: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the command is longer than %d bytes", inspect.MaxCommand)}
	}
	if err != nil || len(command.Args) == 0 {
		return &inspect.Refusal{Code: http.StatusBadRequest, Message: "want a command"}
	}
	control := http.NewResponseController(w)
	if err := errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Now().Add(ExecTime+writeTime))); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), ExecTime)
	defer cancel()
	out, errOut := inspect.Clipped{Most: inspect.MaxOutput}, inspect.Clipped{Most: inspect.MaxOutput}
	code, err := h.proxies.Exec(ctx, namespace, name, command.Args, &out, &errOut) //nolint:contextcheck // it lasts longer than the other questions
	if err != nil {
		return &inspect.Refusal{Code: http.StatusNotFound, Message: err.Error()}
	}
	writeJSON(w, http.StatusOK, inspect.Output{Out: out.Text, Err: errOut.Text, Code: code, Cut: out.Cut || errOut.Cut})
	return nil
}
