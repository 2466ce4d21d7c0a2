package coll
