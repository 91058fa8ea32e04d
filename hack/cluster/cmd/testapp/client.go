package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// client opens a new connection for each request. Redirection is decided once for each connection, so an old one would show nothing about the
// rules of the moment.
type client struct {
	network string
	timeout time.Duration
}

// clientFlags adds the flags that all clients share. The function parses the arguments, of which one is left: wants says what it is.
func clientFlags(flags *flag.FlagSet) func(args []string, wants string) (client, error) {
	v4 := flags.Bool("4", false, "IPv4 only")
	v6 := flags.Bool("6", false, "IPv6 only")
	timeout := flags.Duration("timeout", 5*time.Second, "limit of one request, connection and answer")
	// The network's name decides the family also for names that resolve to both.
	return func(args []string, wants string) (client, error) {
		err := flags.Parse(args)
		switch {
		case err != nil:
			return client{}, err
		case flags.NArg() != 1:
			return client{}, errors.New(wants)
		case *v4 && *v6:
			return client{}, errors.New("-4 and -6 exclude each other")
		case *v4:
			return client{"tcp4", *timeout}, nil
		case *v6:
			return client{"tcp6", *timeout}, nil
		}
		return client{"tcp", *timeout}, nil
	}
}

// get prints the body of each answer and fails if one request did.
func get(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("get", flag.ContinueOnError)
	flags.SetOutput(progress)
	n := flags.Int("n", 1, "how many requests")
	hosts := flags.String("host", "", "comma-separated names to ask for instead of the URL's, one after the other by one connection")
	c, err := clientFlags(flags)(args, "get wants one URL")
	if err != nil {
		return err
	}
	// All requests are made even after a failure: the output shows which ones got through.
	var failed error
	for range *n {
		body, err := c.get(ctx, flags.Arg(0), split(*hosts)...)
		failed = errors.Join(failed, err)
		if _, err := out.Write(body); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return failed
}

// headerFrom is the header with the client's own address. If the server sees the same peer, no proxy was in between.
const headerFrom = "From-Address"

// get makes a request for each host, or for the URL's, by one connection, and returns the bodies of those that succeeded. Any status but 200 is an
// error: no proxy's own answer may pass for the server's. Of https no certificate is checked: a proxy may be asked for any name.
func (c client) get(ctx context.Context, url string, hosts ...string) (bodies []byte, failed error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	// No client, so no redirects are followed and no proxy of the environment is used.
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	port := cmp.Or(request.URL.Port(), map[string]string{"http": "80", "https": "443"}[request.URL.Scheme])
	config := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // see above
	if len(hosts) == 0 {
		hosts = []string{request.URL.Host}
	} else {
		config.ServerName = hosts[0]
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, c.network, net.JoinHostPort(request.URL.Hostname(), port))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	request.Header.Set(headerFrom, conn.LocalAddr().String())
	transport := &http.Transport{
		DisableKeepAlives: len(hosts) == 1,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil }, // a closed one, if it is dialled again
		TLSClientConfig:   config,
	}
	for _, request.Host = range hosts {
		body, err := once(transport, request)
		bodies, failed = append(bodies, body...), errors.Join(failed, err)
	}
	return bodies, failed
}

// once makes a request and reads the whole body.
func once(transport *http.Transport, request *http.Request) ([]byte, error) {
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		reason, _, _ := strings.Cut(string(body), "\n") // such as a proxy's
		return nil, fmt.Errorf("%s: %s: %s", request.URL, response.Status, reason)
	}
	return body, nil
}

// ask makes one request of either kind and returns the banner of who answered.
func (c client) ask(ctx context.Context, target string) (string, error) {
	if strings.HasPrefix(target, "http://") {
		body, err := c.get(ctx, target)
		if err != nil {
			return "", err
		}
		a, err := readAnswer(strings.NewReader(string(body)))
		return a.Banner, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, c.network, target)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", fmt.Errorf("limit the connection's time: %w", err)
		}
	}
	a, err := readAnswer(conn)
	return a.Banner, err
}
