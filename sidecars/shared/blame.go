package shared

import (
	"context"
	"errors"

	"istio-pod-network-controller/sidecars"
)

// maxTests bounds how often one round asks who is to blame: each time may start a program in the proxy's container.
const maxTests = 24

// errTests means that the rest has to wait for the next round.
var errTests = errors.New("too many tests")

// search finds which of several pods a proxy does not take.
type search struct {
	// test returns why a configuration with these members is not taken, or "".
	test    func(ctx context.Context, members []member) (why string, err error)
	tests   int
	refused map[sidecars.Key]string
}

// split returns the members that the proxy takes together: all of have, which it takes already, and as many suspects as possible. It tests all
// suspects, and if that fails each half of them. So a few who are to blame are found among many with few tests.
func (s *search) split(ctx context.Context, have, suspects []member) ([]member, error) {
	if len(suspects) == 0 {
		return have, nil
	}
	if s.tests++; s.tests > maxTests {
		return have, errTests
	}
	all := with(have, suspects)
	why, err := s.test(ctx, all)
	switch {
	case err != nil:
		return have, err
	case why == "":
		return all, nil
	case len(suspects) == 1:
		s.refused[suspects[0].key()] = why
		return have, nil
	}
	half := len(suspects) / 2
	have, err = s.split(ctx, have, suspects[:half])
	if err != nil {
		return have, err
	}
	return s.split(ctx, have, suspects[half:])
}
