cd coordinator; BRIGADE_TEST_DATA=/work/shared timeout 300 ../target/release/deps/processes-06f40b5ba1d385e0 prefixes 2>&1 | grep -v INFO | tail -60
