package inspect

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
)

// Client asks one agent over connections that it dials. Every connection carries TLS with the agent's certificate, end to end.
type Client struct {
	// Certificate is the SHA-256 of the certificate that the agent has to show, hexadecimal. Without it nothing is sent.
	Certificate string
	// Token is sent to the agent alone.
	Token string
	// Dial opens a connection to the agent, in which TLS begins.
	Dial func(ctx context.Context) (net.Conn, error)

	local bool // neither TLS nor a token
}

// GetLocal returns a pod's document from the agent in this container, by its socket.
func GetLocal(ctx context.Context, socket, namespace, name string) (Document, error) {
	c := Client{local: true, Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	return c.Get(ctx, namespace, name)
}

// Get returns a pod's document. An error that the agent has answered with is a *Refusal.
func (c Client) Get(ctx context.Context, namespace, name string) (doc Document, err error) {
	err = c.ask(ctx, http.MethodGet, Path(namespace, name), nil, func(answer *http.Response) error {
		text, err := io.ReadAll(io.LimitReader(answer.Body, MaxAnswer+1))
		switch {
		case err != nil:
			return fmt.Errorf("read the agent's answer: %w", err)
		case len(text) > MaxAnswer:
			return fmt.Errorf("the agent's answer is larger than %d bytes", MaxAnswer)
		}
		doc, err = ParseDocument(text)
		return err
	})
	return doc, err
}

// ask sends a request and has its answer read, or returns the *Refusal that the agent has answered with.
func (c Client) ask(ctx context.Context, method, path string, body []byte, read func(*http.Response) error) error {
	client := &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token goes nowhere else
		Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: c.pinned(),
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx) },
		},
	}
	base := "https://agent"
	if c.local {
		base = "http://agent"
	}
	request, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	if !c.local {
		request.Header.Set("Authorization", "Bearer "+c.Token)
	}
	response, err := client.Do(request)
	if err != nil {
		return orClosed(plain(err))
	}
	defer response.Body.Close() //nolint:errcheck // only read
	if response.StatusCode != http.StatusOK {
		return refused(response)
	}
	return read(response)
}

// ParseDocument returns the document that JSON holds. Fields of a newer agent are ignored.
func ParseDocument(text []byte) (doc Document, err error) {
	if err := json.Unmarshal(text, &doc); err != nil {
		return doc, fmt.Errorf("read the agent's answer: %w", err)
	}
	if doc.Pod == "" {
		return doc, errors.New("read the agent's answer: it is no document about a pod: is the agent of another version?")
	}
	return doc, nil
}

// refused returns what the agent says instead of an answer. Without proxies it does not know the paths of their logs and commands.
func refused(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, MaxAnswer))
	if err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	refusal := &Refusal{}
	_ = json.Unmarshal(text, refusal) // it has the message also if code is a word, as earlier agents have it
	refusal.Code = response.StatusCode
	switch {
	case refusal.Message != "":
		return refusal
	case response.StatusCode == http.StatusNotFound:
		return &Refusal{Code: http.StatusNotFound, Message: "the agent does not serve logs and commands of proxies: it runs none (proxies.enabled is off), or is of an older release"}
	}
	return fmt.Errorf("the agent answered with status %d: is it of another version?", response.StatusCode)
}

// plain takes the method and the address, which nobody has typed, from an error of net/http.
func plain(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

func (c Client) pinned() *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // no authority has signed it: VerifyConnection compares the whole certificate
		MinVersion:         tls.VersionTLS13, NextProtos: []string{"http/1.1"},
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("the agent shows no certificate")
			}
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if got := hex.EncodeToString(sum[:]); c.Certificate == "" || got != c.Certificate {
				return fmt.Errorf("the server has certificate %.16s..., and the agent's annotation names %.16s...: the agent was restarted just now, or somebody is in between; try again", got, c.Certificate)
			}
			return nil
		},
	}
}

// orClosed says why an agent closes a connection at once. The kernel resets it if something was unread.
func orClosed(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return errors.New("the agent closed the connection: too many requests from this address or in all; try again in some seconds")
	}
	return err
}

// Log writes the log of a pod's proxy. An error that the agent has answered with is a *Refusal.
func (c Client) Log(ctx context.Context, namespace, name string, o LogOptions, w io.Writer) error {
	return c.ask(ctx, http.MethodGet, Path(namespace, name)+"/log?"+o.Query().Encode(), nil, func(answer *http.Response) error {
		if _, err := io.Copy(w, answer.Body); err != nil {
			return fmt.Errorf("read the agent's answer: %w", err)
		}
		if why := answer.Trailer.Get(ErrorTrailer); why != "" {
			return fmt.Errorf("the log was cut off: %s", why)
		}
		return nil
	})
}

// Exec runs a command in a pod's proxy. An error that the agent has answered with is a *Refusal.
func (c Client) Exec(ctx context.Context, namespace, name string, command Command) (out Output, err error) {
	body, err := json.Marshal(command)
	if err != nil {
		return out, fmt.Errorf("encode the command: %w", err)
	}
	err = c.ask(ctx, http.MethodPost, Path(namespace, name)+"/exec", body, func(answer *http.Response) error {
		if err := json.NewDecoder(io.LimitReader(answer.Body, 4*MaxOutput)).Decode(&out); err != nil {
			return fmt.Errorf("read the agent's answer: %w", err)
		}
		return nil
	})
	return out, err
}
