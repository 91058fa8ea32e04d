package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// What client and agent agree on about the proxies that agents run for single pods.
const (
	LogRoute  = Route + "/log"
	ExecRoute = Route + "/exec"
	// ErrorTrailer follows a log that was cut off, with the reason.
	ErrorTrailer = "Pod-Network-Error"
	// MaxOutput bounds what is kept of each stream of a command.
	MaxOutput = 256 << 10
	// MaxCommand bounds the request with a command.
	MaxCommand = 64 << 10
)

// LogOptions say what of a proxy's log is wanted.
type LogOptions struct {
	Previous, Follow, Times bool
	Tail                    int // negative: all
}

// Query is the options as a request has them.
func (o LogOptions) Query() url.Values {
	return url.Values{
		"previous": {strconv.FormatBool(o.Previous)}, "follow": {strconv.FormatBool(o.Follow)}, "times": {strconv.FormatBool(o.Times)}, "tail": {strconv.Itoa(o.Tail)},
	}
}

// LogOptionsOf reads the options of a request.
func LogOptionsOf(query url.Values) (o LogOptions, err error) {
	if o.Tail, err = strconv.Atoi(query.Get("tail")); err != nil {
		return o, fmt.Errorf("tail: value %q: want a number", query.Get("tail"))
	}
	o.Previous, o.Follow, o.Times = query.Get("previous") == "true", query.Get("follow") == "true", query.Get("times") == "true"
	return o, nil
}

// Command is a command to run in a proxy.
type Command struct {
	Args []string `json:"args"`
}

// Output is what a command has printed. Cut reports whether that was more than MaxOutput on a stream.
type Output struct {
	Out, Err []byte
	Code     int
	Cut      bool
}

// Log writes the log of a pod's proxy. An error that the agent has answered with is a *Refusal.
func (c Client) Log(ctx context.Context, namespace, name string, o LogOptions, w io.Writer) error {
	response, err := c.ask(ctx, http.MethodGet, Path(namespace, name)+"/log?"+o.Query().Encode(), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	if _, err := io.Copy(w, response.Body); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if why := response.Trailer.Get(ErrorTrailer); why != "" {
		return fmt.Errorf("the log was cut off: %s", why)
	}
	return nil
}

// Exec runs a command in a pod's proxy. An error that the agent has answered with is a *Refusal.
func (c Client) Exec(ctx context.Context, namespace, name string, command Command) (out Output, err error) {
	body, err := json.Marshal(command)
	if err != nil {
		return out, fmt.Errorf("encode the command: %w", err)
	}
	response, err := c.ask(ctx, http.MethodPost, Path(namespace, name)+"/exec", body)
	if err != nil {
		return out, err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	if err := json.NewDecoder(io.LimitReader(response.Body, 4*MaxOutput)).Decode(&out); err != nil {
		return out, fmt.Errorf("read the agent's answer: %w", err)
	}
	return out, nil
}
