// Package redirection proves from inside a pod, without any privilege, that the pod's redirection rules are in force: it makes
// a connection that only the rules can lead to where it must end.
//
// It makes do with little more than system calls, since every pod that waits pays for it.
package redirection

import (
	"errors"
	"slices"
	"strconv"
	"syscall"
)

// ErrMissing says that rules are not in force, or not yet.
var ErrMissing = errors.New("rules missing")

// missingError is ErrMissing with the reasons, one a family.
type missingError []string

func (m missingError) Error() string {
	text, mark := ErrMissing.Error(), ": "
	for _, why := range m {
		text, mark = text+mark+why, "; "
	}
	return text
}

// Is makes errors.Is know it for what it is.
func (m missingError) Is(target error) bool { return target == ErrMissing }

// Proof says what has been proven.
type Proof struct {
	// Families are the address families that are redirected: all that the pod has.
	Families []string
	// ByProxy tells that another process, the proxy most likely, listens on the inbound port and took the connection: it was
	// redirected, but to which port is not proven.
	ByProxy bool
}

// Prober proves redirection, one family after the other:
//
//   - it holds the validation address, so that nobody can listen there unnoticed;
//   - it listens where the rules lead to: on the proxy's inbound port;
//   - it dials the validation address, as any process of the pod could;
//   - it takes the connection, reads the token that it sent, and asks the kernel for the destination.
type Prober struct {
	families []family
	port     int
	listens  map[string]socket
	proven   Proof
}

// New makes a Prober for the proxy's inbound port, and finds out which address families the pod has.
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

// Close gives the inbound port back.
func (p *Prober) Close() {
	for _, l := range p.listens {
		l.close()
	}
}

// Try makes one connection for each family that is not proven yet. An error that is ErrMissing may pass with time; it names
// every family that lacks rules.
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

// listen opens the inbound port once. The kernel delivers redirected connections of the pod itself to its loopback address, so
// nobody outside the pod needs to reach it. False: somebody else listens there.
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

// triedError is what fmt.Errorf("%s: %w") would give.
type triedError struct {
	what string
	err  error
}

func (e *triedError) Error() string { return e.what + ": " + e.err.Error() }
func (e *triedError) Unwrap() error { return e.err }
