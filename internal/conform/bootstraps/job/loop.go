package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func init() { suites["loop"] = runLoop }

// runLoop makes all-gathers of some size, on Env(), until a file exists. Rank 0 says each tenth. A rank that fails says
// when and why.
func runLoop(args []string) error {
	if len(args) != 1 {
		return errors.New("want a file")
	}
	b, err := bootstrap.Env()
	if err != nil {
		return err
	}
	defer b.Close()
	mine := testkit.Bytes(rand.New(rand.NewPCG(testkit.FixedSeed(), uint64(b.Rank()))), 100<<10)
	for round := 0; ; round++ {
		if b.Rank() == 0 && round%10 == 0 {
			fmt.Println("round", round)
		}
		part := mine
		if _, err := os.Stat(args[0]); err == nil && b.Rank() == 0 {
			part = []byte("enough")
		}
		all, err := b.AllGather(context.Background(), part)
		if err != nil {
			fmt.Printf("rank %d at %d: %v\n", b.Rank(), time.Now().UnixMilli(), err)
			return err
		}
		if bytes.Equal(all[0], []byte("enough")) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}
