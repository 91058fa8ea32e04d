// Package redirection proves from inside a pod, without privileges, that the pod's redirection rules are in force: it makes a
// connection that arrives where it must only because of the rules.
//
// It uses little more than system calls, to stay small: each pod that waits runs it.
package redirection

import (
	"errors"
	"slices"
	"strconv"
	"syscall"
)

// ErrMissing means that rules are not in force, or not yet.
var ErrMissing = errors.New("rules missing")

// missingError is ErrMissing with a reason for each family.
type missingError []string

func (m missingError) Error() string {
	text, mark := ErrMissing.Error(), ": "
	for _, why := range m {
		text, mark = text+mark+why, "; "
	}
	return text
}

// Is makes errors.Is recognise it as ErrMissing.
func (m missingError) Is(target error) bool { return target == ErrMissing }

// Proof is what has been proven.
type Proof struct {
	// Families are the redirected address families: all that the pod has.
	Families []string
	// ByProxy means that another process, probably the proxy, listens on the inbound port and accepted the connection. Then the
	// connection was redirected, but to which port is not proven.
	ByProxy bool
}

// Prober proves redirection for each address family:
//
//   - it binds the validation address, so that nobody else can listen there;
//   - it listens on the proxy's inbound port, to which the rules lead;
//   - it dials the validation address, as any process of the pod could;
//   - it accepts the connection, reads the token that it sent, and asks the kernel for the original destination.
type Prober struct {
	families []family
	port     int
	listens  map[string]socket
	proven   Proof
}

// New returns a Prober for the proxy's inbound port. It finds out which address families the pod has.
func New(port uint16) (*Prober, error) {
	p := &Prober{port: int(port), listens: map[string]socket{}}
	for _, f := range families() {
		switch s, err := f.bind(f.loopback, 0); {
		case err == nil:
			p.families = append(p.families, f)
			s.close()
		case !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.EAFNOSUPPORT):
			return nil, err
		}
	}
	if len(p.families) == 0 {
		return nil, errors.New("the pod has no loopback address of any family")
	}
	return p, nil
}

// Close closes the inbound port.
func (p *Prober) Close() {
	for _, l := range p.listens {
		l.close()
	}
}

// Try makes one connection for each family that is not proven yet. With an error that is ErrMissing, a later try may succeed; it names
// each family without rules.
func (p *Prober) Try() (Proof, error) {
	var missing missingError
	for _, f := range p.families {
		if slices.Contains(p.proven.Families, f.name) {
			continue
		}
		byProxy, err := p.prove(f)
		switch why, ok := errors.AsType[missingError](err); {
		case ok:
			missing = append(missing, why...)
		case err != nil:
			return p.proven, &triedError{"prove redirection of " + f.name, err}
		default:
			p.proven.Families = append(p.proven.Families, f.name)
			p.proven.ByProxy = p.proven.ByProxy || byProxy
		}
	}
	if len(missing) > 0 {
		return p.proven, missing
	}
	return p.proven, nil
}

func (p *Prober) prove(f family) (byProxy bool, err error) {
	held, err := f.bind(f.validation, validationPort)
	taken := errors.Is(err, syscall.EADDRINUSE)
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return false, f.missing("lo lacks the address that comes with the rules")
	case err != nil && !taken:
		return false, err
	case !taken:
		defer held.close()
	}
	l, listening, err := p.listen(f)
	if err != nil {
		return false, err
	}
	if !listening && taken {
		return false, errors.New("others listen on both the validation port and " + strconv.Itoa(p.port) + ": nothing can be proven")
	}
	c, err := f.bind(f.loopback, 0)
	if err != nil {
		return false, err
	}
	defer c.close()
	if err := c.connect(f.address(f.validation, validationPort)); err != nil {
		return false, f.missing(err.Error())
	}
	if !listening {
		return true, nil
	}
	return false, f.take(l, c)
}

// listen opens the inbound port once. It listens on loopback only, where the kernel delivers the pod's own redirected connections, so
// nobody outside can reach it. It returns false if another process listens there.
func (p *Prober) listen(f family) (socket, bool, error) {
	if l, ok := p.listens[f.name]; ok {
		return l, true, nil
	}
	l, err := f.bind(f.loopback, p.port)
	if err == nil {
		if err = l.listen(); err == nil {
			p.listens[f.name] = l
			return l, true, nil
		}
		l.close()
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return 0, false, nil
	}
	return 0, false, &triedError{"listen on the proxy's inbound port", err}
}

// triedError is like the result of fmt.Errorf("%s: %w").
type triedError struct {
	what string
	err  error
}

func (e *triedError) Error() string { return e.what + ": " + e.err.Error() }
func (e *triedError) Unwrap() error { return e.err }
