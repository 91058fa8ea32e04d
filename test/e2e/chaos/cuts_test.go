package chaos

import (
	"slices"
	"testing"
)

func TestCuts_sameSeed_givesTheSameCuts(t *testing.T) {
	if !slices.Equal(Cuts(1, 20), Cuts(1, 20)) {
		t.Error("the same seed gave other cuts")
	}
	if slices.Equal(Cuts(1, 20), Cuts(2, 20)) {
		t.Error("two seeds gave the same cuts")
	}
	if !slices.Equal(Cuts(1, 20)[:3], Cuts(1, 3)) {
		t.Error("a shorter run has other cuts")
	}
}

func TestCuts_fiveInARow_haveEveryMoment(t *testing.T) {
	for seed := range uint64(50) {
		cuts := Cuts(seed, 20)
		if len(cuts) != 20 {
			t.Fatalf("seed %d gives %d cuts", seed, len(cuts))
		}
		for five := range slices.Chunk(cuts, 5) {
			seen := map[Moment]bool{}
			for _, c := range five {
				seen[c.Moment] = true
				if c.After < 0 || c.After > latest[c.Moment] {
					t.Errorf("seed %d: %+v", seed, c)
				}
			}
			if len(seen) != 5 {
				t.Errorf("seed %d: %v", seed, five)
			}
		}
	}
}
