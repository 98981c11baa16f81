/*
 * Copyright the iscp authors.
 *
 * Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file except
 * in compliance with the License. You may obtain a copy of the License at
 *
 *     http://www.apache.org/licenses/LICENSE-2.0
 *
 * Unless required by applicable law or agreed to in writing, software distributed under the License
 * is distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express
 * or implied. See the License for the specific language governing permissions and limitations under
 * the License.
 */
package io.iscp.plans;

import java.io.DataInput;
import java.io.DataOutput;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.MathContext;

/** What is known of a group's values: how many they are, and exact sums of them, of their powers, or of pairs of them. */
final class ExactSums {
    private static final MathContext DIGITS = new MathContext(40);
    private static final int PAIR = 5; // sums of x, y, x * y, x * x and y * y

    private final ExactSum[] sums;
    private long count;

    /** What infinities and NaN come to; 0: there was none. */
    private double beyond;

    private ExactSums(int number) {
        sums = new ExactSum[number];
        for (int place = 0; place < number; place++) {
            sums[place] = new ExactSum();
        }
    }

    /** Of values and their powers, up to `highest`. */
    static ExactSums ofPowers(int highest) {
        return new ExactSums(highest);
    }

    static ExactSums ofPairs() {
        return new ExactSums(PAIR);
    }

    void add(double value) {
        count++;
        if (!Double.isFinite(value)) {
            beyond += value;
            return;
        }
        sums[0].add(value);
        for (int power = 2; power <= sums.length; power++) {
            sums[power - 1].addPower(value, power);
        }
    }

    /** One that a double may not hold: as two that it does. */
    void add(long value) {
        count++;
        sums[0].add((value >> 32) * 0x1p32);
        sums[0].add(value & 0xffffffffL);
    }

    void add(double x, double y) {
        count++;
        if (!Double.isFinite(x) || !Double.isFinite(y)) {
            beyond = Double.NaN;
            return;
        }
        sums[0].add(x);
        sums[1].add(y);
        sums[2].addProduct(x, y);
        sums[3].addPower(x, 2);
        sums[4].addPower(y, 2);
    }

    void add(ExactSums other) {
        count += other.count;
        beyond += other.beyond;
        for (int place = 0; place < sums.length; place++) {
            sums[place].add(other.sums[place]);
        }
    }

    long count() {
        return count;
    }

    double sum() {
        return isBeyond() ? beyond : sums[0].rounded();
    }

    double averageOfFirst() {
        return average(0);
    }

    double averageOfSecond() {
        return average(1);
    }

    /** The sum of what the values differ from their average by, to this power. */
    double moment(int power) {
        if (isBeyond()) {
            return Double.NaN;
        }
        if (count == 0) {
            return 0;
        }
        BigDecimal first = sums[0].exact();
        BigDecimal second = sums[1].exact();
        BigDecimal n = BigDecimal.valueOf(count);
        if (power == 2) {
            return quotient(n.multiply(second).subtract(first.pow(2)), n);
        }
        BigDecimal third = sums[2].exact();
        if (power == 3) {
            BigDecimal found = n.pow(2).multiply(third);
            found = found.subtract(times(3, n.multiply(first).multiply(second)));
            return quotient(found.add(times(2, first.pow(3))), n.pow(2));
        }
        BigDecimal found = n.pow(3).multiply(sums[3].exact());
        found = found.subtract(times(4, n.pow(2).multiply(first).multiply(third)));
        found = found.add(times(6, n.multiply(first.pow(2)).multiply(second)));
        return quotient(found.subtract(times(3, first.pow(4))), n.pow(3));
    }

    /** Of pairs: the sum of what both differ from their averages by, multiplied. */
    double comoment() {
        return ofPair(2, 0, 1);
    }

    double momentOfFirst() {
        return ofPair(3, 0, 0);
    }

    double momentOfSecond() {
        return ofPair(4, 1, 1);
    }

    private double ofPair(int products, int one, int other) {
        if (isBeyond()) {
            return Double.NaN;
        }
        if (count == 0) {
            return 0;
        }
        BigDecimal n = BigDecimal.valueOf(count);
        BigDecimal sum = n.multiply(sums[products].exact());
        return quotient(sum.subtract(sums[one].exact().multiply(sums[other].exact())), n);
    }

    private double average(int place) {
        if (isBeyond()) {
            return Double.NaN;
        }
        return count == 0 ? 0 : quotient(sums[place].exact(), BigDecimal.valueOf(count));
    }

    private boolean isBeyond() {
        return beyond != 0; // NaN too
    }

    private static BigDecimal times(long factor, BigDecimal value) {
        return value.multiply(BigDecimal.valueOf(factor));
    }

    private static double quotient(BigDecimal value, BigDecimal divisor) {
        return value.divide(divisor, DIGITS).doubleValue();
    }

    void write(DataOutput out) throws IOException {
        out.writeLong(count);
        out.writeDouble(beyond);
        out.writeInt(sums.length);
        for (ExactSum each : sums) {
            each.write(out);
        }
    }

    static ExactSums read(DataInput in) throws IOException {
        long count = in.readLong();
        double beyond = in.readDouble();
        ExactSum[] sums = new ExactSum[in.readInt()];
        for (int place = 0; place < sums.length; place++) {
            sums[place] = ExactSum.read(in);
        }
        return new ExactSums(sums, count, beyond);
    }

    private ExactSums(ExactSum[] sums, long count, double beyond) {
        this.sums = sums;
        this.count = count;
        this.beyond = beyond;
    }
}
